"""Transforms template.yaml as SAM does and says what CloudFormation would see of each function.

Reads a list of parameter sets from stdin and prints for each of them, by the logical id of the function, its
configuration, its published version, and the version's deletion policy.
"""
import copy
import hashlib
import json
import multiprocessing
import os
import re
import sys

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samcli.yamlhelper import yaml_parse  # noqa: E402
from samtranslator.translator.transform import transform  # noqa: E402

# Members of a function that no version has.
UNVERSIONED = ("ReservedConcurrentExecutions", "Tags", "RecursiveLoop", "RuntimeManagementConfig")


class NoManagedPolicies:
    def load(self):
        return {}


class Stack:
    def __init__(self, parsed, given):
        template = copy.deepcopy(parsed)
        self.fingerprints = {}
        self.values = {name: given.get(name, p["Default"]) for name, p in template["Parameters"].items()}
        for resource in template["Resources"].values():
            if resource["Type"] == "AWS::Serverless::Function":
                resource["Properties"]["CodeUri"] = "s3://bucket/" + resource["Properties"]["CodeUri"]
        self.template = transform(template, dict(self.values), NoManagedPolicies())

    def functions(self):
        resources = self.template["Resources"]
        versions, kept = {}, {}
        for name, resource in resources.items():
            if resource["Type"] == "AWS::Lambda::Version":
                owner = resource["Properties"]["FunctionName"]["Ref"]
                versions[owner] = name + " " + str(self.value(resource["Properties"].get("Description")))
                kept[owner] = resource.get("DeletionPolicy", "")
        found = {}
        for name, resource in resources.items():
            if resource["Type"] == "AWS::Lambda::Function":
                properties = {k: v for k, v in resource["Properties"].items() if k not in UNVERSIONED}
                config = json.dumps(self.value(properties), sort_keys=True)
                found[name] = {"config": config, "version": versions.get(name, ""), "policy": kept.get(name, "")}
        return found

    def value(self, node):
        if isinstance(node, list):
            return [v for v in map(self.value, node) if v is not None]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            (name, arg), = node.items()
            if name == "Ref":
                return None if arg == "AWS::NoValue" else self.values.get(arg, arg)
            if name == "Fn::GetAtt":
                id, attribute = arg.split(".", 1) if isinstance(arg, str) else arg
                return self.fingerprint(id) if attribute == "Fingerprint" else id + "." + attribute
            if name == "Fn::If":
                return self.value(arg[1] if self.holds(arg[0]) else arg[2])
            if name == "Fn::Sub":
                text, names = (arg, {}) if isinstance(arg, str) else arg
                names = {k: self.value(v) for k, v in names.items()}
                return re.sub(r"\$\{([^}]*)\}", lambda m: str(names.get(m[1], self.values.get(m[1], m[1]))), text)
            if name == "Fn::Select":
                chosen = self.value(arg[1])
                return (chosen.split(",") if isinstance(chosen, str) else chosen)[int(arg[0])]
            if name == "Fn::Split":
                return [*map(str, str(self.value(arg[1])).split(arg[0])), "", ""]  # a pseudo parameter has fewer parts
            if name == "Fn::Join":
                return arg[0].join(map(str, self.value(arg[1])))
            if name == "Fn::Equals":
                return str(self.value(arg[0])) == str(self.value(arg[1]))
            if name == "Fn::Not":
                return not self.value(arg[0])
            if name == "Fn::And":
                return all(map(self.value, arg))
            if name == "Fn::Or":
                return any(map(self.value, arg))
            if name == "Condition" and isinstance(arg, str):
                return self.holds(arg)
            if name.startswith("Fn::"):
                raise ValueError(name + " is not known")
        return {k: v for k, v in ((k, self.value(v)) for k, v in node.items()) if v is not None}

    def holds(self, condition):
        return self.value(self.template["Conditions"][condition])

    def fingerprint(self, id):
        if id not in self.fingerprints:
            properties = self.value(self.template["Resources"][id]["Properties"])
            self.fingerprints[id] = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()
        return self.fingerprints[id]


def functions(given):
    return Stack(parsed, given).functions()


with open(sys.argv[1]) as f:
    parsed = yaml_parse(f.read())
with multiprocessing.get_context("fork").Pool() as pool:
    json.dump(pool.map(functions, json.load(sys.stdin)), sys.stdout)
