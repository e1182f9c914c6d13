"""Runs commands of the AWS command line for the tests, in one process, because each start of the real one takes a second.

It checks each command against AWS's own description of the service, as the command line does. The arguments are endpoints,
SERVICE=URL. It prints the port at which a POST of a command's arguments, each ending with a zero byte, gets the output.
"""
import datetime
import http.server
import json
import sys

import botocore.session
import jmespath
from botocore import xform_name

ENDPOINTS = dict(a.split("=", 1) for a in sys.argv[1:])
SESSION = botocore.session.Session()
SESSION.set_credentials("test", "test", "operator")
CLIENTS = {}


def client(service, region):
    if (service, region) not in CLIENTS:
        CLIENTS[service, region] = SESSION.create_client(service, region, endpoint_url=ENDPOINTS[service])
    return CLIENTS[service, region]


def value(shape, text):
    if shape.type_name == "map":
        pairs = (p.split("=", 1) for p in text.split(","))
        return {k: value(shape.value, v) for k, v in pairs}
    if shape.type_name == "structure":
        pairs = (p.split("=", 1) for p in text.split(","))
        return {k: value(shape.members[k], v) for k, v in pairs}
    if shape.type_name == "boolean":
        return {"true": True, "false": False}[text.lower()]
    if shape.type_name in ("integer", "long"):
        return int(text)
    if shape.type_name != "string":
        raise ValueError("an argument of type " + shape.type_name + " is not supported")
    return text


def plain(v):
    """Returns a value with times as text, as the command line prints them."""
    if isinstance(v, datetime.datetime):
        return v.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds")
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    return [plain(x) for x in v] if isinstance(v, list) else v


def run(args):
    service, command, options = args[0], args[1], args[2:]
    region, query, text, given = "us-east-1", None, False, {}
    api = client(service, region)
    operation = next(o for o in api.meta.service_model.operation_names if xform_name(o, "-") == command)
    members = {xform_name(m, "-"): m for m in api.meta.service_model.operation_model(operation).input_shape.members}
    shapes = api.meta.service_model.operation_model(operation).input_shape.members
    while options:
        name = options.pop(0)
        if not name.startswith("--"):
            raise ValueError("what is " + name)
        name = name[2:]
        if name == "region":
            region = options.pop(0)
        elif name == "query":
            query = options.pop(0)
        elif name == "output":
            text = options.pop(0) == "text"
        elif name.startswith("no-") and name[3:] in members:
            given[members[name[3:]]] = False
        elif shapes[members[name]].type_name == "boolean":
            given[members[name]] = True
        else:
            given[members[name]] = value(shapes[members[name]], options.pop(0))
    api, method = client(service, region), xform_name(operation)
    if api.can_paginate(method):
        pages = api.get_paginator(method).paginate(**given)
        # For text, the command line applies the query to each page.
        outs = [plain(p) for p in pages] if text else [plain(pages.build_full_result())]
    else:
        outs = [plain(getattr(api, method)(**given))]
    for out in outs:
        out.pop("ResponseMetadata", None)
    if query:
        outs = [jmespath.search(query, out) for out in outs]
    return "".join((str(out) if text else json.dumps(out)) + "\n" for out in outs)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        args = self.rfile.read(int(self.headers["Content-Length"])).decode().split("\0")[:-1]
        try:
            status, body = 200, run(args)
        except Exception as e:
            status, body = 400, f"aws {' '.join(args)}: {type(e).__name__}: {e}\n"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
