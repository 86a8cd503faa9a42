"""A second device without an accelerator: `torch.ones(3, device="second")`, with the memory and kernels of the host.

second_device/source/       the backend, on the dispatch key PrivateUse1
second_device/backend.py    `torch.second`, and `install()`
second_device/building.py   builds it, and the environment of a process that has it
second_device/with_device.py   python with_device.py -m custom_autograd check FILE --device second

A process has the device for good: the key is renamed, and autograd starts a thread for it. So it is never installed
beside other tests: conftest.py runs each file of this folder in a process that has it from the first import of torch.
"""
