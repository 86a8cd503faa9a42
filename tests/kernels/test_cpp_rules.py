"""Gradients computed by C++ functions: bound by the names in their schema, and right in every mode that takes them."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor

from custom_autograd import GradientError, GradientUnavailable, Sample, custom_op
from custom_autograd.capabilities.compile_cache import read_rules
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels import KernelWarning, cpp_kernel
from custom_autograd.kernels.cpp import definitions_in
from custom_autograd.native.loading import library

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
pytestmark = pytest.mark.usefixtures("fresh_compiler")

SOURCE = """
#include <custom_autograd/kernel.h>
#include <optional>
#include <tuple>
#include <vector>
using namespace custom_autograd;

Tensor product(const Tensor& left, const Tensor& right) {
  check_contiguous(left, "left");
  check_contiguous(right, "right");
  Tensor out = allocate_like(left);
  for (int64_t i = 0; i < left.numel(); ++i) write<double>(out)[i] = read<double>(left)[i] * read<double>(right)[i];
  return out;
}

std::tuple<Tensor, Tensor> both(const Tensor& grad, const Tensor& x, const Tensor& y) {
  return {product(grad, y), product(grad, x)};
}

std::tuple<Tensor, Tensor> y_first(const Tensor& y, const Tensor& grad, const Tensor& x) {
  return {product(grad, x), product(grad, y)};
}

Tensor of_x(const Tensor& grad, const Tensor& x, const Tensor& y) { return product(grad, y); }
Tensor refusing(const Tensor& grad, const Tensor& y) { throw std::runtime_error("the gradient of y is asked for"); }

Tensor narrowed(const Tensor& grad, const Tensor& x) { return allocate(x, {x.numel()}, ScalarType::Float); }
Tensor shortened(const Tensor& grad, const Tensor& x) { return allocate(x, {1}, ScalarType::Double); }

std::vector<Tensor> each(const Tensor& grad, const std::vector<Tensor>& xs, double factor) {
  std::vector<Tensor> found;
  for (const Tensor& x : xs) {
    found.push_back(allocate_like(x));
    for (int64_t i = 0; i < x.numel(); ++i) write<double>(found.back())[i] = read<double>(grad)[i] * factor;
  }
  return found;
}

std::tuple<Tensor, Tensor> maybe(const Tensor& grad, const Tensor& x, const std::optional<Tensor>& bias) {
  return {product(grad, x), bias ? product(grad, *bias) : allocate(x, {0}, ScalarType::Double)};
}

Tensor undefined(const std::optional<Tensor>& grad_out, const std::optional<Tensor>& grad_rest, const Tensor& x) {
  Tensor found = allocate_like(x);
  double value = (grad_out ? 1 : 0) + (grad_rest ? 10 : 0);
  for (int64_t i = 0; i < x.numel(); ++i) write<double>(found)[i] = value;
  return found;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("product(Tensor left, Tensor right) -> Tensor");
  m.def("both(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
  m.def("y_first(Tensor y, Tensor grad, Tensor x) -> (Tensor grad_y, Tensor grad_x)");
  m.def("of_x(Tensor grad, Tensor x, Tensor y) -> Tensor");
  m.def("refusing(Tensor grad, Tensor y) -> Tensor");
  m.def("narrowed(Tensor grad, Tensor x) -> Tensor");
  m.def("shortened(Tensor grad, Tensor x) -> Tensor");
  m.def("each(Tensor grad, Tensor[] xs, float factor) -> Tensor[]");
  m.def("maybe(Tensor grad, Tensor x, Tensor? bias) -> (Tensor, Tensor)");
  m.def("undefined(Tensor? grad_out, Tensor? grad_rest, Tensor x) -> Tensor");
  const char* name = "hidden(Tensor x) -> Tensor";
  m.def(name);
  m.def("wanting(Tensor grad, Tensor x, Tensor y, bool[] needs) -> (Tensor, Tensor)");
  m.def("writing(Tensor(a!) grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
  m.def("without_y(Tensor grad, Tensor x) -> (Tensor, Tensor)");
  m.def("wrong(Tensor grad, Tensor x, float y) -> (Tensor, Tensor)");
  m.def("stray(Tensor grad, Tensor x, Tensor y, Tensor z) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("product", TORCH_BOX(&product));
  m.impl("both", TORCH_BOX(&both));
  m.impl("y_first", TORCH_BOX(&y_first));
  m.impl("of_x", TORCH_BOX(&of_x));
  m.impl("refusing", TORCH_BOX(&refusing));
  m.impl("narrowed", TORCH_BOX(&narrowed));
  m.impl("shortened", TORCH_BOX(&shortened));
  m.impl("each", TORCH_BOX(&each));
  m.impl("maybe", TORCH_BOX(&maybe));
  m.impl("undefined", TORCH_BOX(&undefined));
}
"""

BROKEN = """
#error this cannot be built
STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("both(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)");
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "rules.cpp"
    file.write_text(SOURCE)
    return file


def multiply(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def declared(name: str):
    op = custom_op(f"cpp_rules::{name}", multiply, replace=True)
    op.register_fake(lambda x, y: torch.empty_like(x))
    return op


def make(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def product(source):
    op = declared("product")
    op.register_backward(cpp_kernel(source, "both"), replace=True)
    return op


def text_of(error):
    return "\n".join(line for line in str(error).splitlines() if not line.startswith("  declared"))


def eager(op, x, y):
    """An expanded gradient, which arrives contiguous."""
    return torch.autograd.grad(op(x, y).sum(), (x, y))


def functional(op, x, y):
    return torch.func.grad(lambda x, y: op(x, y).sum(), (0, 1))(x.detach(), y.detach())


def for_each_row(op, x, y):
    return torch.func.vmap(torch.func.grad(lambda x, y: op(x, y).sum(), (0, 1)))(x.detach(), y.detach())


def compiled(op, x, y):
    return eager(torch.compile(op, backend="aot_eager", fullgraph=True, dynamic=True), x, y)


WAYS = {"eager": eager, "functional": functional, "for each row": for_each_row, "compiled": compiled}


@needs_compiler
class TestInEveryMode:
    def test_backward(self, product):
        x, y = make(2, 3), make(2, 3)

        for _ in range(3):  # generated Python, then native code
            found = torch.autograd.grad(product(x, y), (x, y), torch.ones(2, 3, dtype=torch.float64))

            assert (True, True) == (torch.equal(y, found[0]), torch.equal(x, found[1]))

    def test_the_gradients_come_in_the_order_of_the_names_given_to_register_grad(self, source):
        op = declared("y_first")
        op.register_grad("y", "x")(cpp_kernel(source, "y_first"))
        x, y = make(2, 3), make(2, 3)

        for _ in range(3):
            found = torch.autograd.grad(op(x, y), (x, y), torch.ones(2, 3, dtype=torch.float64))

            assert (True, True) == (torch.equal(y, found[0]), torch.equal(x, found[1]))

    @pytest.mark.skipif(library.module is None, reason=library.reason)
    def test_native_code_calls_the_function(self, product):
        rule = next(rule for rule in product._record.registrations.all() if rule.kind == "backward").function
        x, y, grad = make(2, 3), make(2, 3), torch.ones(2, 3, dtype=torch.float64)
        torch.autograd.grad(product(x, y), (x, y), grad)

        for incoming in (grad, grad[0, 0].expand(2, 3), grad.T.contiguous().T):
            found = torch.autograd.grad(product(x, y), (x, y), incoming)

            assert (True, True) == (torch.equal(y, found[0]), torch.equal(x, found[1]))
        assert type(rule._native) is library.module.Boxed

    def test_the_key_of_compile_caches_stays(self, product):
        before = read_rules(product._record)
        for _ in range(3):
            product(make(2), make(2)).sum().backward()
        after = read_rules(product._record)

        assert ([], before.number()) == (after.unread, after.number())

    def test_transposed_inputs(self, product):
        x, y = make(2, 3), make(2, 3)

        found = torch.autograd.grad((product(x.T, y.T) * torch.arange(6.0).reshape(3, 2)).sum(), (x, y))

        expected = torch.autograd.grad((x.T * y.T * torch.arange(6.0).reshape(3, 2)).sum(), (x, y))
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_gradients(self, product, way):
        x, y = make(4, 3), make(4, 3)

        found = way(product, x, y)

        assert (True, True) == (torch.equal(y, found[0]), torch.equal(x, found[1]))

    def test_a_second_derivative_raises(self, product):
        x, y = make(3), make(3)
        (first,) = torch.autograd.grad(product(x, y).sum(), x, create_graph=True)

        with pytest.raises(GradientUnavailable) as second:
            torch.autograd.grad(first.sum(), y)

        assert_expected_inline(
            text_of(second.value),
            """\
cpp_rules::product: a backward in C++ can be differentiated only once, and a second derivative is requested
  rule       rules.cpp, 'both', backward
  do         make the C++ function a kernel of an op with a backward or reference, and call it in a rule in Python""",
        )

    def test_a_tangent_raises(self, product):
        with pytest.raises(GradientUnavailable) as forward:
            torch.func.jvp(product, (make(3).detach(), make(3).detach()), (make(3), make(3)))

        assert_expected_inline(
            text_of(forward.value),
            """\
cpp_rules::product: the op cannot derive forward mode from a backward in C++
  rule       rules.cpp, 'both', backward
  do         register_jvp, or write the backward in differentiable operations""",
        )
        assert "missing: the backward is in C++" == product.capabilities()["jvp"]

    def test_check_passes(self, product):
        product.register_reference(multiply)
        product.register_samples(lambda make: [Sample(make(4, 3), make(4, 3)), Sample(make(0), make(0))])

        assert product.check(checks=("gradcheck", "fake", "compile", "vmap"), dtype=torch.float64).ok


@needs_compiler
class TestWhatARuleTakes:
    def test_one_function_for_each_input_runs_only_if_it_is_needed(self, source):
        op = declared("each_input")
        op.register_grad("x")(cpp_kernel(source, "of_x"))
        op.register_grad("y")(cpp_kernel(source, "refusing"))
        x, y = make(3), make(3)

        assert torch.equal(y, torch.autograd.grad(op(x, y.detach()).sum(), x)[0])
        with pytest.raises(RuntimeError, match="the gradient of y is asked for"):
            torch.autograd.grad(op(x, y).sum(), y)

    def test_a_list_and_a_number(self, source):
        op = custom_op("cpp_rules::total", schema="(Tensor[] xs, float factor) -> Tensor")(
            lambda xs, factor: torch.stack(xs).sum(0) * factor
        )
        op.register_backward(cpp_kernel(source, "each"))
        xs = [make(3), make(3)]

        found = torch.autograd.grad(op(xs, 2.5).sum(), xs)

        assert [[2.5] * 3] * 2 == [gradient.tolist() for gradient in found]

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize("function", ["narrowed", "shortened"])
    def test_a_gradient_that_is_not_like_its_input_is_refused(self, source, function, backend):
        op = declared(f"unlike_{function}_{backend}")
        op.register_grad("x")(cpp_kernel(source, function))
        x, y = make(3), make(3).detach()

        for _ in range(3):  # in native code, too
            with pytest.raises(GradientError, match=r"the gradient of 'x' (is not like 'x'|has the wrong)"):
                torch.compile(op, backend=backend)(x, y).backward(torch.ones(3, dtype=torch.float64))

    @pytest.mark.parametrize("is_given", [True, False])
    def test_an_optional_input(self, source, is_given):
        op = custom_op("cpp_rules::maybe", schema="(Tensor x, Tensor? bias) -> Tensor", replace=True)(
            lambda x, bias: x * x / 2 + (0 if bias is None else bias * bias / 2)
        )
        op.register_fake(lambda x, bias: torch.empty_like(x))
        op.register_backward(cpp_kernel(source, "maybe"), replace=True)
        x, bias = make(3), make(3)
        inputs = (x, bias) if is_given else (x,)

        for call in (op, torch.compile(op, backend="aot_eager", fullgraph=True)):
            found = torch.autograd.grad(call(x, bias if is_given else None).sum(), inputs)

            torch.testing.assert_close(found, inputs)

    @pytest.mark.parametrize(("materialize", "expected"), [(True, 11.0), (False, 10.0)])
    def test_an_undefined_gradient(self, source, materialize, expected):
        op = custom_op(
            "cpp_rules::two", schema="(Tensor x) -> (Tensor, Tensor)", outputs=("out", "rest"), replace=True
        )(lambda x: (x.clone(), x.clone()))
        op.register_backward(cpp_kernel(source, "undefined"), materialize_grads=materialize, replace=True)
        x = make(2)

        assert [expected] * 2 == torch.autograd.grad(op(x)[1].sum(), x)[0].tolist()

    def test_it_is_replaced(self, source, product):
        product.register_backward(lambda grad, x, y: (grad * 0, grad * 0), replace=True)
        product.register_backward(cpp_kernel(source, "both"), replace=True)
        x, y = make(2), make(2)

        assert torch.equal(y, torch.autograd.grad(product(x, y).sum(), x)[0])

    def test_a_fallback_where_it_cannot_be_built(self, tmp_path):
        broken = tmp_path / "broken.cpp"
        broken.write_text(BROKEN)
        op = declared("fallback")
        op.register_backward(cpp_kernel(broken, "both", fallback=lambda grad, x, y: (grad * y, grad * x)))
        x, y = make(2), make(2)

        with pytest.warns(KernelWarning, match="runs in its fallback"):
            found = torch.autograd.grad(op(x, y).sum(), x)[0]

        assert torch.equal(y, found)

    def test_no_fallback(self, tmp_path):
        broken = tmp_path / "broken.cpp"
        broken.write_text(BROKEN)
        op = declared("no_fallback")
        op.register_backward(cpp_kernel(broken, "both"))
        x, y = make(2), make(2)

        with pytest.raises(KernelUnavailable, match=r"broken\.cpp"):
            torch.autograd.grad(op(x, y).sum(), x)


class TestRegistration:
    def refusal(self, file: Path, function: str, *named: str) -> str:
        op = declared("refusing")
        register = op.register_grad(*named) if named else op.register_backward
        return message(lambda: register(cpp_kernel(file, function)))

    def test_nothing_is_built(self, tmp_path):
        file = tmp_path / "broken.cpp"
        file.write_text(BROKEN)
        kernel = cpp_kernel(file, "both")

        assert kernel is declared("unbuilt").register_backward(kernel)

    def test_the_schema_is_not_in_the_text(self, source):
        assert_expected_inline(
            together(self.refusal(source, "hidden"), self.refusal(source, "bohth")),
            """\
RegistrationError: cpp_rules::refusing
  declared   FILE.py:LINE
the source does not show what 'hidden' takes, by which the rule is bound
  expected   m.def("hidden(Tensor grad, ...) -> ...") with its schema in string literals
  rule       rules.cpp, 'hidden'
  do         write it so, or register a Python function that calls the kernel
the source does not show what 'bohth' takes, by which the rule is bound
  expected   m.def("bohth(Tensor grad, ...) -> ...") with its schema in string literals
  rule       rules.cpp, 'bohth'
  do         did you mean 'both'?""",
        )

    def test_the_source_is_not_there(self):
        assert_expected_inline(
            self.refusal(Path("/no/such/file.cpp"), "both").partition("  do")[0],
            """\
RegistrationError: cpp_rules::refusing: the source of the rule cannot be read
  found      [Errno 2] No such file or directory: '/no/such/file.cpp'
  rule       file.cpp, 'both'
  declared   FILE.py:LINE
""",
        )

    def test_what_does_not_fit_the_op(self, source):
        assert_expected_inline(
            together(
                self.refusal(source, "wanting"),
                self.refusal(source, "writing"),
                self.refusal(source, "y_first"),
                self.refusal(source, "without_y"),
                self.refusal(source, "wrong"),
                self.refusal(source, "of_x"),
                self.refusal(source, "both", "x"),
                self.refusal(source, "stray"),
            ),
            """\
RegistrationError: cpp_rules::refusing
  declared   FILE.py:LINE
a rule in C++ cannot take 'needs'
  found      (Tensor grad, Tensor x, Tensor y, bool[] needs) -> (Tensor, Tensor)
  rule       rules.cpp, 'wanting'
  do         register a rule for each input with register_grad: it runs only if that gradient is needed
a rule must not write to 'grad'
  found      (Tensor(a!) grad, Tensor x, Tensor y) -> (Tensor, Tensor)
  rule       rules.cpp, 'writing'
  do         return new tensors
the rule returns gradients by other names, or in another order, than it is registered for
  expected   'grad_x', 'grad_y'
  found      'grad_y', 'grad_x'
  rule       rules.cpp, 'y_first'
  do         put them in the order of the inputs, or of the names given to register_grad
the rule returns the gradient of 'y' and does not take 'y'
  found      (Tensor grad, Tensor x) -> (Tensor, Tensor)
  rule       rules.cpp, 'without_y'
  do         add 'Tensor y' to its parameters: a graph takes the shape of the gradient from it
the rule takes 'y' as another type than the op
  expected   Tensor
  found      float
  rule       rules.cpp, 'wrong'
the rule must return one gradient for each of 'x', 'y'
  expected   Tensor, Tensor
  found      (Tensor grad, Tensor x, Tensor y) -> Tensor
  rule       rules.cpp, 'of_x'
  do         register it with op.register_grad, which takes the inputs whose gradients it returns
the rule must return one gradient for each of 'x'
  expected   Tensor
  found      (Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)
  rule       rules.cpp, 'both'
  do         register it with op.register_grad, which takes the inputs whose gradients it returns
the backward has a parameter 'z' that names nothing
  expected   'x', 'y', 'output', 'needs', 'meta', 'grad', 'grad_output'
  found      'z'
  rule       rules.cpp, 'stray'
  do         name an input, an output, or what else is listed""",
        )


class TestDefinitions:
    def found(self, tmp_path: Path, text: str, function: str = "f") -> str | None:
        file = tmp_path / "source.cpp"
        file.write_text(text)
        return definitions_in(file).get(function)

    @pytest.mark.parametrize(
        "text",
        [
            'm.def("f(Tensor x) -> Tensor");',
            'm.def("f(Tensor x)" /* , */\n  // "and"\n  " -> Tensor");',
            'm . def (R"(f(Tensor x)\n   -> Tensor)");',
            'm.def(R"x(f(Tensor x) -> Tensor)x", tags);',
            'char quote = \'"\'; m.def("f(Tensor x) -> Tensor");',
            '// m.def("f(Tensor y) -> Tensor");\nm.def("f(Tensor x) -> Tensor");',
            '/* m.def("f(Tensor y) -> Tensor"); */ m.def("f(Tensor x) -> Tensor");',
            'auto note = "m.def(\\"f(Tensor y) -> Tensor\\")"; m.def("f(Tensor x) -> Tensor");',
            'm.def("ff(Tensor y) -> Tensor"); m.def(" f (Tensor x) -> Tensor");',
        ],
    )
    def test_found(self, tmp_path, text):
        assert "(Tensor x) -> Tensor" == self.found(tmp_path, text)

    @pytest.mark.parametrize(
        "text", ["", "m.def(schema);", 'm.impl("f(Tensor x) -> Tensor");', '// m.def("f() -> ()");']
    )
    def test_not_found(self, tmp_path, text):
        assert self.found(tmp_path, text) is None

    def test_every_function_of_the_gallery(self):
        files = sorted((Path(__file__).parents[2] / "examples" / "gallery").glob("*.cpp"))
        registered = [(file, name) for file in files for name in re.findall(r'm\.def\(\s*"(\w+)', file.read_text())]

        assert len(registered) > 20
        assert [] == [name for file, name in registered if not definitions_in(file).get(name, "").startswith("(")]
