#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor curve(const Tensor& x, const Tensor& knots, const Tensor& values) {
  check_contiguous(x, "x");
  check_contiguous(knots, "knots");
  check_contiguous(values, "values");
  STD_TORCH_CHECK(values.numel() == knots.numel(), "'values' must have an element for each knot");
  const double *in = read<double>(x), *k = read<double>(knots), *v = read<double>(values);
  int64_t n = knots.numel();
  STD_TORCH_CHECK(n > 0, "'knots' must not be empty");
  Tensor out = allocate_like(x);
  double* result = write<double>(out);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t right = 0;
    while (right < n && k[right] <= in[i]) ++right;
    if (right == 0 || in[i] > k[n - 1] || in[i] != in[i]) {
      result[i] = in[i] != in[i] ? in[i] : right == 0 ? v[0] : v[n - 1];
      continue;
    }
    double share = (in[i] - k[right - 1]) / (k[right] - k[right - 1]);
    result[i] = v[right - 1] + share * (v[right] - v[right - 1]);
  }
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("curve(Tensor x, Tensor knots, Tensor values) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("curve", TORCH_BOX(&curve)); }
