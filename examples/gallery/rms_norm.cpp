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
  Tensor out = allocate_like(x);
  Tensor rstd;
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    rstd = allocate(x, shape, statistic_type<T>);
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

// x_grad_i = rstd g_i - rstd^3 x_i / features * (sum_j g_j x_j + rstd_grad), with g = out_grad * weight; and in the
// statistic's type weight_grad_i, the sum over all rows of out_grad_i x_i rstd.
std::tuple<Tensor, Tensor> rms_norm_grad(
    const Tensor& out_grad, const Tensor& x, const Tensor& weight, const Tensor& rstd, const Tensor& rstd_grad) {
  check_contiguous(out_grad, "out_grad");
  check_contiguous(x, "x");
  check_contiguous(weight, "weight");
  check_contiguous(rstd, "rstd");
  check_contiguous(rstd_grad, "rstd_grad");
  STD_TORCH_CHECK(x.dim() > 0 && weight.numel() == x.size(-1), "'weight' must have one element per feature of 'x'");
  STD_TORCH_CHECK(out_grad.numel() == x.numel(), "'out_grad' must have the shape of 'x'");
  STD_TORCH_CHECK(out_grad.scalar_type() == x.scalar_type(), "'out_grad' must have the dtype of 'x'");
  int64_t features = x.size(-1);
  int64_t rows = row_count(x);
  STD_TORCH_CHECK(rstd.numel() == rows && rstd_grad.numel() == rows, "'rstd' must have one element per row of 'x'");
  // The rows are added up in pieces whose number follows from the sizes alone, so that the result does not depend on
  // the number of threads.
  int64_t pieces = std::clamp<int64_t>(rows / 16, 1, 256);
  Tensor x_grad = allocate_like(x);
  Tensor weight_grad;
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    check_type(rstd, statistic_type<T>, "rstd");
    check_type(rstd_grad, statistic_type<T>, "rstd_grad");
    Tensor partial = allocate(x, {pieces, features}, statistic_type<T>);
    weight_grad = allocate(x, {features}, statistic_type<T>);
    const T *grad_data = read<T>(out_grad), *x_data = read<T>(x);
    const S *w = read<S>(weight), *rstd_data = read<S>(rstd), *rstd_grad_data = read<S>(rstd_grad);
    T* result_data = write<T>(x_grad);
    S *partial_data = write<S>(partial), *weight_data = write<S>(weight_grad);
    for_rows(pieces, rows / pieces * features, [=](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece) {
        S* on_weight = partial_data + piece * features;
        std::fill(on_weight, on_weight + features, S(0));
        for (int64_t row = piece * rows / pieces; row < (piece + 1) * rows / pieces; ++row) {
          const T *grad = grad_data + row * features, *in = x_data + row * features;
          T* result = result_data + row * features;
          S scale = rstd_data[row];
          S total = rstd_grad_data[row];
#pragma omp simd reduction(+ : total)
          for (int64_t i = 0; i < features; ++i) total += widen(grad[i]) * w[i] * widen(in[i]);
          S pull = scale * scale * scale * total / S(features);
#pragma omp simd
          for (int64_t i = 0; i < features; ++i) {
            S scaled = scale * widen(grad[i]), value = widen(in[i]);
            result[i] = narrow<T>(scaled * w[i] - pull * value);
            on_weight[i] += scaled * value;
          }
        }
      }
    });
    for_rows(features, pieces, [=](int64_t first, int64_t last) {
      std::fill(weight_data + first, weight_data + last, S(0));
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const S* on_weight = partial_data + piece * features;
#pragma omp simd
        for (int64_t i = first; i < last; ++i) weight_data[i] += on_weight[i];
      }
    });
  });
  return {x_grad, weight_grad};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("rms_norm_grad(Tensor out_grad, Tensor x, Tensor weight, Tensor rstd, Tensor rstd_grad) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("rms_norm_grad", TORCH_BOX(&rms_norm_grad));
}
