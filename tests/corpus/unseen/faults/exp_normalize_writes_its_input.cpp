// The softmax of each row; the maximum is subtracted first.
#include <custom_autograd/kernel.h>

#include <algorithm>
#include <cmath>

using namespace custom_autograd;

Tensor exp_normalize(const Tensor& x) {
  check_contiguous(x, "x");
  int64_t columns = x.size(-1);
  Tensor out = allocate_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    T *values = write<T>(x), *result = write<T>(out);
    for (int64_t row = 0; row < row_count(x) && columns > 0; ++row, values += columns, result += columns) {
      S highest = widen(*std::max_element(values, values + columns)), sum = 0;
      for (int64_t i = 0; i < columns; ++i) {
        values[i] = narrow<T>(widen(values[i]) - highest);
        sum += std::exp(widen(values[i]));
      }
      for (int64_t i = 0; i < columns; ++i) result[i] = narrow<T>(std::exp(widen(values[i])) / sum);
    }
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("exp_normalize(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("exp_normalize", TORCH_BOX(&exp_normalize)); }
