"""Verifies the deliveries in the file given, each with every secret that its
receiver might hold, and prints a list of lists of verdicts."""

import base64
import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def verify(secret, delivery):
    webhook = Webhook(secret if secret.startswith("whsec_") else secret.encode())
    try:
        webhook.verify(base64.b64decode(delivery["body"]), delivery["headers"])
        return True
    except WebhookVerificationError:
        return False


with open(sys.argv[1]) as f:
    deliveries = json.load(f)
print(json.dumps([[verify(s, d) for s in d["secrets"]] for d in deliveries]))
