"""Ops can be called until the interpreter is torn down."""

import subprocess
import sys
import textwrap

from tables import each

PROGRAM = textwrap.dedent(
    """
    import atexit

    def last():
        assert double(torch.ones(2)).tolist() == [2, 2]
        assert double(torch.ones(2, dtype=torch.float64)).tolist() == [2, 2]
        assert torch.ops.at_exit.double(torch.ones(1, 2)).tolist() == [[2, 2]]
        x = torch.ones(3, requires_grad=True)
        double(x).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]
        print("called", flush=True)

    atexit.register(last)  # before PyTorch is imported: it runs after PyTorch's own handlers

    import torch
    from torch import Tensor
    from custom_autograd import custom_op

    @custom_op("at_exit::double", RULES)
    def double(x: Tensor) -> Tensor:
        return x * 2
    """
)
DECLARED = {
    "by name": "double.register_backward(lambda grad: grad * 2)",
    "drop-in": "double.register_autograd(lambda ctx, grad: grad * 2)",
    "called before": "double.register_backward(lambda grad: grad * 2); double(torch.ones(1))",
    "replaced": "double.register_backward(lambda grad: grad * 2); exec(AGAIN)",
}
AGAIN = """
AGAIN = '''
@custom_op("at_exit::double", replace=True)
def double(x: Tensor) -> Tensor:
    return x + x
double.register_backward(lambda grad: grad + grad)
'''
"""


@each("how", DECLARED)
def test_an_exit_handler_that_is_older_than_torch_can_call_ops(how):
    program = PROGRAM.replace(", RULES", "") + AGAIN + DECLARED[how]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)

    assert ("called\n", 0) == (done.stdout, done.returncode), done.stderr
