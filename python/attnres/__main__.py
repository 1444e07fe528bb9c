"""`python -m attnres`: the program."""

from .launch import run_module

run_module()
