// Gated units, activation(gate) * up, and both of their gradients in one pass: see gated_units.py.
#include <custom_autograd/kernel.h>

#include <tuple>

using namespace custom_autograd;

// Either activation is gate * sigmoid(inner(gate)); slope is the derivative of inner.
struct Silu {
  template <typename S>
  static S inner(S gate) { return gate; }
  template <typename S>
  static S slope(S) { return S(1); }
};

struct Gelu {
  // The sigmoid is 0 or 1 to the last bit beyond 32, and the cube of a value further out may overflow.
  template <typename S>
  static S near(S gate) { return gate < S(-32) ? S(-32) : gate > S(32) ? S(32) : gate; }
  template <typename S>
  static S inner(S gate) { return S(1.5957691216057308) * near(gate) * (S(1) + S(0.044715) * near(gate) * near(gate)); }
  template <typename S>
  static S slope(S gate) { return S(1.5957691216057308) * (S(1) + S(3 * 0.044715) * near(gate) * near(gate)); }
};

template <typename Activation, typename S>
inline S sigmoid_of(S gate) { return S(1) / (S(1) + exponential(-Activation::inner(gate))); }

static void check_rows(const Tensor& tensor, const Tensor& like, const char* argument) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 2 && (tensor.numel() == 0 || tensor.size(1) == 1 || tensor.stride(1) == 1),
      "'", argument, "' must be a CPU tensor of 2 dimensions, the last with stride 1");
  STD_TORCH_CHECK(tensor.size(0) == like.size(0) && tensor.size(1) == like.size(1),
      "'", argument, "' must have the shape of 'gate'");
  STD_TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), "'", argument, "' must have the dtype of 'gate'");
}

// Calls work(row, column, count) on pieces of rows, in torch's threads: balanced for few long rows and many short ones.
template <typename Work>
static void for_pieces(int64_t rows, int64_t features, const Work& work) {
  if (rows == 0 || features == 0) return;
  torch::stable::parallel_for(0, rows * features, 16384, [&](int64_t first, int64_t last) {
    for (int64_t place = first; place < last;) {
      int64_t column = place % features, count = std::min(features - column, last - place);
      work(place / features, column, count);
      place += count;
    }
  });
}

// gate, up: (rows, features), each with a distance between rows of its own. Returns activation(gate) * up, contiguous.
template <typename Activation>
static Tensor gated_by(const Tensor& gate, const Tensor& up) {
  check_rows(gate, gate, "gate");
  check_rows(up, gate, "up");
  int64_t rows = gate.size(0), features = gate.size(1), gate_row = gate.stride(0), up_row = up.stride(0);
  Tensor out = allocate(gate, {rows, features});
  for_element_type(gate, "gate", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T *gate_data = read<T>(gate), *up_data = read<T>(up);
    T* out_data = write<T>(out);
    for_pieces(rows, features, [=](int64_t row, int64_t column, int64_t count) {
      const T *g = gate_data + row * gate_row + column, *u = up_data + row * up_row + column;
      T* result = out_data + row * features + column;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        S value = widen(g[i]);
        result[i] = narrow<T>(value * sigmoid_of<Activation>(value) * widen(u[i]));
      }
    });
  });
  return out;
}

// Both gradients from one reading of the inputs; the activation is computed again, nothing but the inputs was kept.
template <typename Activation>
static std::tuple<Tensor, Tensor> gated_grad_by(const Tensor& gate, const Tensor& up, const Tensor& out_grad) {
  check_rows(gate, gate, "gate");
  check_rows(up, gate, "up");
  check_rows(out_grad, gate, "out_grad");
  int64_t rows = gate.size(0), features = gate.size(1);
  int64_t gate_row = gate.stride(0), up_row = up.stride(0), grad_row = out_grad.stride(0);
  Tensor gate_grad = allocate(gate, {rows, features});
  Tensor up_grad = allocate(gate, {rows, features});
  for_element_type(gate, "gate", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    const T *grad_data = read<T>(out_grad), *gate_data = read<T>(gate), *up_data = read<T>(up);
    T *gate_result = write<T>(gate_grad), *up_result = write<T>(up_grad);
    for_pieces(rows, features, [=](int64_t row, int64_t column, int64_t count) {
      const T *g = gate_data + row * gate_row + column, *u = up_data + row * up_row + column;
      const T* grad = grad_data + row * grad_row + column;
      T *on_gate = gate_result + row * features + column, *on_up = up_result + row * features + column;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        S value = widen(g[i]), incoming = widen(grad[i]);
        S sigmoid = sigmoid_of<Activation>(value), active = value * sigmoid;
        S derivative = sigmoid + active * (S(1) - sigmoid) * Activation::slope(value);
        on_gate[i] = narrow<T>(incoming * widen(u[i]) * derivative);
        on_up[i] = narrow<T>(incoming * active);
      }
    });
  });
  return {gate_grad, up_grad};
}

Tensor gated(const Tensor& gate, const Tensor& up, bool is_silu) {
  return is_silu ? gated_by<Silu>(gate, up) : gated_by<Gelu>(gate, up);
}

std::tuple<Tensor, Tensor> gated_grad(const Tensor& gate, const Tensor& up, const Tensor& out_grad, bool is_silu) {
  return is_silu ? gated_grad_by<Silu>(gate, up, out_grad) : gated_grad_by<Gelu>(gate, up, out_grad);
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("gated(Tensor gate, Tensor up, bool is_silu) -> Tensor");
  m.def("gated_grad(Tensor gate, Tensor up, Tensor out_grad, bool is_silu) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("gated", TORCH_BOX(&gated));
  m.impl("gated_grad", TORCH_BOX(&gated_grad));
}
