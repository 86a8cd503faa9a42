// Adds to the residual in place and normalises the sum; and the gradients of that: see fused_add_rms_norm.py.
#include <custom_autograd/kernel.h>

#include <tuple>
#include <vector>

using namespace custom_autograd;

static void check_like(const Tensor& tensor, const Tensor& like, const char* argument) {
  check_contiguous(tensor, argument);
  STD_TORCH_CHECK(tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type(),
      "'", argument, "' must have the shape and dtype of 'residual'");
}

static void check_weight(const Tensor& weight, const Tensor& residual) {
  check_contiguous(weight, "weight");
  STD_TORCH_CHECK(residual.dim() > 0 && weight.numel() == residual.size(-1),
      "'weight' must have one element per feature of 'residual'");
}

// x, residual: (..., features); weight: (features,), in the statistic's type. Writes the sum to residual; returns out
// and rstd: (..., 1).
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  check_contiguous(residual, "residual");
  check_like(x, residual, "x");
  check_weight(weight, residual);
  int64_t features = residual.size(-1), rows = row_count(residual);
  std::vector<int64_t> shape(residual.sizes().begin(), residual.sizes().end());
  shape.back() = 1;
  Tensor out = allocate_like(residual);
  Tensor rstd;
  for_element_type(residual, "residual", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    rstd = allocate(residual, shape, statistic_type<T>);
    const T* x_data = read<T>(x);
    const S* w = read<S>(weight);
    T *sum_data = write<T>(residual), *out_data = write<T>(out);
    S* rstd_data = write<S>(rstd);
    for_rows(rows, features, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = x_data + row * features;
        T *sums = sum_data + row * features, *result = out_data + row * features;
        S square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t i = 0; i < features; ++i) {
          S sum = widen(sums[i]) + widen(in[i]);
          sums[i] = narrow<T>(sum);
          // The statistic is that of what is kept, which is what the backward reads. GCC does not vectorise a loop with
          // a variable of T, so it is narrowed again in words only.
          S kept = widen(narrow<T>(sum));
          square += kept * kept;
        }
        S scale = S(1) / std::sqrt(square / S(features) + S(eps));
        rstd_data[row] = scale;
#pragma omp simd
        for (int64_t i = 0; i < features; ++i) result[i] = narrow<T>(widen(sums[i]) * scale * w[i]);
      }
    });
  });
  return {out, rstd};
}

// With g = out_grad * weight, for each row:
// input_grad_i = residual_grad_i + rstd g_i - rstd^3 residual_i / features * (sum_j g_j residual_j + rstd_grad);
// weight_grad_i, in the statistic's type, is the sum over all rows of out_grad_i residual_i rstd.
std::tuple<Tensor, Tensor> add_rms_norm_grad(const Tensor& out_grad, const Tensor& residual_grad,
    const Tensor& residual, const Tensor& weight, const Tensor& rstd, const Tensor& rstd_grad) {
  check_contiguous(residual, "residual");
  check_like(out_grad, residual, "out_grad");
  check_like(residual_grad, residual, "residual_grad");
  check_weight(weight, residual);
  check_contiguous(rstd, "rstd");
  check_contiguous(rstd_grad, "rstd_grad");
  int64_t features = residual.size(-1), rows = row_count(residual);
  STD_TORCH_CHECK(rstd.numel() == rows && rstd_grad.numel() == rows, "'rstd' must have one element per row of 'residual'");
  // The rows are added up in pieces whose number follows from the sizes alone, so that the result does not depend on
  // the number of threads.
  int64_t pieces = std::clamp<int64_t>(rows / 16, 1, 256);
  Tensor input_grad = allocate_like(residual);
  Tensor weight_grad;
  for_element_type(residual, "residual", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(weight, statistic_type<T>, "weight");
    check_type(rstd, statistic_type<T>, "rstd");
    check_type(rstd_grad, statistic_type<T>, "rstd_grad");
    Tensor partial = allocate(residual, {pieces, features}, statistic_type<T>);
    weight_grad = allocate(residual, {features}, statistic_type<T>);
    const T *grad_data = read<T>(out_grad), *kept_data = read<T>(residual_grad), *sum_data = read<T>(residual);
    const S *w = read<S>(weight), *rstd_data = read<S>(rstd), *rstd_grad_data = read<S>(rstd_grad);
    T* result_data = write<T>(input_grad);
    S *partial_data = write<S>(partial), *weight_data = write<S>(weight_grad);
    for_rows(pieces, rows / pieces * features, [=](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece) {
        S* on_weight = partial_data + piece * features;
        std::fill(on_weight, on_weight + features, S(0));
        for (int64_t row = piece * rows / pieces; row < (piece + 1) * rows / pieces; ++row) {
          const T *grad = grad_data + row * features, *kept = kept_data + row * features;
          const T* sums = sum_data + row * features;
          T* result = result_data + row * features;
          S scale = rstd_data[row], total = rstd_grad_data[row];
#pragma omp simd reduction(+ : total)
          for (int64_t i = 0; i < features; ++i) total += widen(grad[i]) * w[i] * widen(sums[i]);
          S pull = scale * scale * scale * total / S(features);
#pragma omp simd
          for (int64_t i = 0; i < features; ++i) {
            S scaled = scale * widen(grad[i]), sum = widen(sums[i]);
            result[i] = narrow<T>(widen(kept[i]) + scaled * w[i] - pull * sum);
            on_weight[i] += scaled * sum;
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
  return {input_grad, weight_grad};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("add_rms_norm(Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("add_rms_norm_grad(Tensor out_grad, Tensor residual_grad, Tensor residual, Tensor weight, Tensor rstd, "
        "Tensor rstd_grad) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("add_rms_norm_grad", TORCH_BOX(&add_rms_norm_grad));
}
