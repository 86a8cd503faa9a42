// Rotary position embedding on half-split features: see rope.py.
#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

// Where a row starts, in elements: x may be a transposed view, so leading dimensions keep their strides.
static int64_t row_offset(int64_t row, const int64_t* sizes, const int64_t* strides, int64_t dims) {
  int64_t offset = 0;
  for (int64_t dim = dims - 1; dim >= 0; --dim) {
    offset += (row % sizes[dim]) * strides[dim];
    row /= sizes[dim];
  }
  return offset;
}

// Writes x, rotated, to out, which may be x itself. x, out: (..., positions, features), the last stride 1;
// cos, sin: (positions, features / 2), contiguous, in the statistic's type.
void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& out) {
  STD_TORCH_CHECK(x.is_cpu() && out.is_cpu() && x.dim() >= 2 && out.dim() == x.dim(), "'x' and 'out' must be CPU tensors of 2 dimensions or more");
  check_contiguous(cos, "cos");
  check_contiguous(sin, "sin");
  int64_t dims = x.dim() - 1, features = x.size(dims), half = features / 2, positions = x.size(dims - 1);
  for (int64_t dim = 0; dim <= dims; ++dim) {
    STD_TORCH_CHECK(x.size(dim) == out.size(dim), "'out' must have the shape of 'x'");
    STD_TORCH_CHECK(out.stride(dim) != 0 || out.size(dim) < 2, "'x' is expanded, so its elements share memory: clone it");
  }
  STD_TORCH_CHECK(features % 2 == 0, "the last dimension of 'x' must be even, not ", features);
  STD_TORCH_CHECK(cos.dim() == 2 && cos.size(0) == positions && cos.size(1) == half && sin.dim() == 2 &&
          sin.size(0) == positions && sin.size(1) == half,
      "'cos' and 'sin' must be (", positions, ", ", half, "): positions and half the features of 'x'");
  if (x.numel() == 0) return;
  STD_TORCH_CHECK(x.stride(dims) == 1 && out.stride(dims) == 1, "the last dimension of 'x' must have stride 1");
  STD_TORCH_CHECK(x.scalar_type() == out.scalar_type(), "'out' must have the dtype of 'x'");
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  std::vector<int64_t> x_strides(x.strides().begin(), x.strides().end());
  std::vector<int64_t> out_strides(out.strides().begin(), out.strides().end());
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(cos, statistic_type<T>, "cos");
    check_type(sin, statistic_type<T>, "sin");
    const T* x_data = read<T>(x);
    const S *cos_data = read<S>(cos), *sin_data = read<S>(sin);
    T* out_data = write<T>(out);
    for_rows(row_count(x), features, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = x_data + row_offset(row, sizes.data(), x_strides.data(), dims);
        T* result = out_data + row_offset(row, sizes.data(), out_strides.data(), dims);
        const S *c = cos_data + row % positions * half, *s = sin_data + row % positions * half;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          S low = widen(in[i]), high = widen(in[i + half]);
          result[i] = narrow<T>(low * c[i] - high * s[i]);
          result[i + half] = narrow<T>(high * c[i] + low * s[i]);
        }
      }
    });
  });
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("rotate(Tensor x, Tensor cos, Tensor sin, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("rotate", TORCH_BOX(&rotate));
}
