// Root-mean-square normalisation over the last dimension, and its gradient with respect to x: see rms_norm.py.
#include <custom_autograd/kernel.h>

#include <tuple>
#include <vector>

using namespace custom_autograd;

// x: (..., features); weight: (features,), in the statistic's type. Returns out like x and rstd: (..., 1).
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_contiguous(x, "x");
  check_contiguous(weight, "weight");
  STD_TORCH_CHECK(x.dim() > 0 && weight.numel() == x.size(-1), "'weight' must have one element per feature of 'x'");
  int64_t features = x.size(-1);
  int64_t rows = row_count(x);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = 1;
  Tensor out = torch::stable::empty_like(x);
  Tensor rstd;
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    rstd = torch::stable::new_empty(x, shape, statistic_type<T>);
    const T* x_data = read<T>(x);
    const S* w = read<S>(weight);
    T* out_data = write<T>(out);
    S* rstd_data = write<S>(rstd);
    for_rows(rows, features, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = x_data + row * features;
        T* result = out_data + row * features;
        S sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < features; ++i) sum += widen(in[i]) * widen(in[i]);
        S scale = S(1) / std::sqrt(sum / S(features) + S(eps));
        rstd_data[row] = scale;
#pragma omp simd
        for (int64_t i = 0; i < features; ++i) result[i] = narrow<T>(widen(in[i]) * scale * w[i]);
      }
    });
  });
  return {out, rstd};
}

// grad_x_i = rstd g_i - rstd^3 x_i / features * (sum_j g_j x_j + grad_rstd), with g = grad_out * weight.
Tensor rms_norm_grad(
    const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& grad_rstd) {
  check_contiguous(grad_out, "grad_out");
  check_contiguous(x, "x");
  check_contiguous(weight, "weight");
  check_contiguous(rstd, "rstd");
  check_contiguous(grad_rstd, "grad_rstd");
  STD_TORCH_CHECK(x.dim() > 0 && weight.numel() == x.size(-1), "'weight' must have one element per feature of 'x'");
  STD_TORCH_CHECK(grad_out.numel() == x.numel(), "'grad_out' must have the shape of 'x'");
  STD_TORCH_CHECK(grad_out.scalar_type() == x.scalar_type(), "'grad_out' must have the dtype of 'x'");
  int64_t features = x.size(-1);
  int64_t rows = row_count(x);
  STD_TORCH_CHECK(rstd.numel() == rows && grad_rstd.numel() == rows, "'rstd' must have one element per row of 'x'");
  Tensor grad_x = torch::stable::empty_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    check_type(rstd, statistic_type<T>, "rstd");
    check_type(grad_rstd, statistic_type<T>, "grad_rstd");
    const T *grad_data = read<T>(grad_out), *x_data = read<T>(x);
    const S *w = read<S>(weight), *rstd_data = read<S>(rstd), *grad_rstd_data = read<S>(grad_rstd);
    T* result_data = write<T>(grad_x);
    for_rows(rows, features, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T *grad = grad_data + row * features, *in = x_data + row * features;
        T* result = result_data + row * features;
        S scale = rstd_data[row];
        S total = grad_rstd_data[row];
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < features; ++i) total += widen(grad[i]) * w[i] * widen(in[i]);
        S pull = scale * scale * scale * total / S(features);
#pragma omp simd
        for (int64_t i = 0; i < features; ++i) {
          result[i] = narrow<T>(scale * widen(grad[i]) * w[i] - pull * widen(in[i]));
        }
      }
    });
  });
  return grad_x;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_grad(Tensor grad_out, Tensor x, Tensor weight, Tensor rstd, Tensor grad_rstd) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("rms_norm_grad", TORCH_BOX(&rms_norm_grad));
}
