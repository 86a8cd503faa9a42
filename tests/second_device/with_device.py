"""Runs Python in a process that has the second device: `python with_device.py -m custom_autograd ...`."""

import os
import sys

if __name__ == "__main__":
    sys.path[0:1] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    from second_device.building import environment

    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment())
