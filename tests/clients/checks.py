"""Counts what holds and says what does not."""

import sys


class Checks:
    def __init__(self, name):
        self.name, self.count, self.failures = name, 0, 0

    def __call__(self, right, what):
        self.count += 1
        if not right:
            self.failures += 1
            print(f"{self.name}: FAILED: {what}", file=sys.stderr)

    def raises(self, kinds, call, what):
        """The exception, where it is one of `kinds`."""
        try:
            call()
        except kinds as error:
            self(True, what)
            return error
        except Exception as error:
            self(False, f"{what}: got {type(error).__name__}: {error}")
        else:
            self(False, f"{what}: got an answer")
        return None

    def end(self):
        """Prints the verdict; the exit code."""
        verdict = f"{self.failures} failed" if self.failures else "ok"
        print(f"{self.name}: {verdict}: {self.count} checks")
        return 1 if self.failures else 0
