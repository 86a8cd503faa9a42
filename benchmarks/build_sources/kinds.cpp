// Ops of other kinds than x * y, with C++ autograd: what groups.py declares in Python with the same names.
#include <torch/extension.h>
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

template <class Signature>
auto find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>(); }

using Pair = std::tuple<Tensor, Tensor>;

// ------------------------------------------------------------------------------ an output for the backward, integers

Pair hidden(const Tensor& x, const Tensor&) { return at::frexp(x); }

struct Hidden : Function<Hidden> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& index) {
    static auto op = find<Pair(const Tensor&, const Tensor&)>("bench_kinds::hidden");
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [out, exponent] = op.call(x, index);
    ctx->save_for_backward({exponent});
    ctx->mark_non_differentiable({exponent});
    return {out, exponent};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {at::ldexp(grads[0], -ctx->get_saved_variables()[0]), Tensor()};
  }
};

Pair hidden_autograd(const Tensor& x, const Tensor& index) {
  auto found = Hidden::apply(x, index);
  return {found[0], found[1]};
}

// ------------------------------------------------------------------------------------------------ two outputs

Pair two_outputs(const Tensor& x, const Tensor&) { return at::aminmax(x); }

struct TwoOutputs : Function<TwoOutputs> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    static auto op = find<Pair(const Tensor&, const Tensor&)>("bench_kinds::two_outputs");
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, y});
    auto [least, greatest] = op.call(x, y);
    return {least, greatest};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1], grads[0] * saved[0]};
  }
};

Pair two_outputs_autograd(const Tensor& x, const Tensor& y) {
  auto found = TwoOutputs::apply(x, y);
  return {found[0], found[1]};
}

// ------------------------------------------------------------------------------------- a list and an optional tensor

using Optional = std::optional<Tensor>;

Tensor optional_and_list(at::TensorList xs, const Optional& bias) {
  return bias ? at::addcmul(*bias, xs[0], xs[1]) : xs[0] * xs[1];
}

struct OptionalAndList : Function<OptionalAndList> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Optional& bias) {
    static auto op = find<Tensor(at::TensorList, const Optional&)>("bench_kinds::optional_and_list");
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, y});
    Tensor xs[] = {x, y};
    return op.call(xs, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    return {grads[0] * saved[1], grads[0] * saved[0], grads[0] * 1};
  }
};

Tensor optional_and_list_autograd(at::TensorList xs, const Optional& bias) {
  return OptionalAndList::apply(xs[0], xs[1], bias);
}

// ------------------------------------------------------------------------------------------------------- an op that writes

void writing(const Tensor& x, const Tensor& y) { x.add_(y); }

TORCH_LIBRARY(bench_kinds, m) {
  m.def("hidden(Tensor x, Tensor index) -> (Tensor out, Tensor exponent)");
  m.def("two_outputs(Tensor x, Tensor y) -> (Tensor, Tensor)");
  m.def("optional_and_list(Tensor[] xs, Tensor? bias=None) -> Tensor");
  m.def("writing(Tensor(a!) x, Tensor y) -> ()");
}
TORCH_LIBRARY_IMPL(bench_kinds, CPU, m) {
  m.impl("hidden", hidden);
  m.impl("two_outputs", two_outputs);
  m.impl("optional_and_list", optional_and_list);
  m.impl("writing", writing);
}
TORCH_LIBRARY_IMPL(bench_kinds, Autograd, m) {
  m.impl("hidden", hidden_autograd);
  m.impl("two_outputs", two_outputs_autograd);
  m.impl("optional_and_list", optional_and_list_autograd);
  m.impl("writing", torch::autograd::autogradNotImplementedFallback());
}
