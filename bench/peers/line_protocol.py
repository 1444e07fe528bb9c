"""Answering a driver: one JSON object a line in, one a line out."""

import json
import sys


def serve(answer):
    """Answers every request on standard input with answer(request), until the input ends."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as e:  # the driver decides what a failure means
            reply = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(reply), flush=True)
