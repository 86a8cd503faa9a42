// The table of linear biases of causal attention: see alibi_bias.py.
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

// slopes: (heads,), in the statistic's type; out: (heads, length, length), contiguous, which is filled.
void alibi_bias(const Tensor& slopes, const Tensor& out) {
  check_contiguous(slopes, "slopes");
  check_contiguous(out, "out");
  STD_TORCH_CHECK(slopes.dim() == 1 && out.dim() == 3 && out.size(0) == slopes.size(0) && out.size(1) == out.size(2),
      "'out' must be (heads, length, length), with one of 'slopes' per head");
  int64_t length = out.size(1);
  for_element_type(out, "out", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(slopes, statistic_type<T>, "slopes");
    const S* slope_data = read<S>(slopes);
    T* out_data = write<T>(out);
    T never = narrow<T>(-std::numeric_limits<S>::infinity());
    for_rows(slopes.size(0) * length, length, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        S slope = slope_data[row / length];
        int32_t query = static_cast<int32_t>(row % length);
        T* result = out_data + row * length;
#pragma omp simd
        for (int32_t key = 0; key <= query; ++key) result[key] = narrow<T>(slope * static_cast<S>(key - query));
        std::fill(result + query + 1, result + length, never);
      }
    });
  });
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("alibi_bias(Tensor slopes, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("alibi_bias", TORCH_BOX(&alibi_bias));
}
