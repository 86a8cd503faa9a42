// The loss of rows of logits, and its gradient in their place: see fused_linear_cross_entropy.py.
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

// logits: (rows, classes); labels: (rows,); count: (), in the statistic's type. Returns per row the loss, 0 where it is
// ignored. with_grad: logits becomes the gradient of the losses' sum / max(1, count).
Tensor rows_in_place(
    const Tensor& logits, const Tensor& labels, const Tensor& count, int64_t ignore_index, bool with_grad) {
  check_contiguous(logits, "logits");
  check_contiguous(labels, "labels");
  STD_TORCH_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0),
      "'logits' must be (rows, classes) and 'labels' (rows,)");
  STD_TORCH_CHECK(labels.scalar_type() == ScalarType::Long, "'labels' must be int64");
  STD_TORCH_CHECK(count.numel() == 1, "'count' must have one element");
  int64_t rows = logits.size(0), classes = logits.size(1);
  const int64_t* label = read<int64_t>(labels);
  for (int64_t row = 0; row < rows; ++row) {
    STD_TORCH_CHECK(label[row] == ignore_index || (label[row] >= 0 && label[row] < classes),
        "label ", label[row], " is neither a class in [0, ", classes, ") nor ignore_index (", ignore_index, ")");
  }
  Tensor losses;
  for_element_type(logits, "logits", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(count, statistic_type<T>, "count");
    losses = allocate(logits, {rows}, statistic_type<T>);
    S scale = S(1) / std::max(*read<S>(count), S(1));
    T* logits_data = write<T>(logits);
    S* losses_data = write<S>(losses);
    for_rows(rows, classes, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        T* in = logits_data + row * classes;
        bool kept = label[row] != ignore_index;
        if (!kept) {
          losses_data[row] = 0;
          if (with_grad) std::fill_n(in, classes, narrow<T>(S(0)));
          continue;
        }
        S largest = -std::numeric_limits<S>::infinity();
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < classes; ++i) largest = widen(in[i]) > largest ? widen(in[i]) : largest;
        // Of a row of -infinity, or with +infinity in it, the differences are NaN, as in PyTorch.
        S sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < classes; ++i) sum += exponential(widen(in[i]) - largest);
        S lse = std::log(sum) + largest;
        S picked = widen(in[label[row]]);
        losses_data[row] = lse - picked;
        if (!with_grad) continue;
#pragma omp simd
        for (int64_t i = 0; i < classes; ++i) in[i] = narrow<T>(exponential(widen(in[i]) - lse) * scale);
        in[label[row]] = narrow<T>((exponential(picked - lse) - S(1)) * scale);
      }
    });
  });
  return losses;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("rows_in_place(Tensor(a!) logits, Tensor labels, Tensor count, int ignore_index, bool with_grad) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("rows_in_place", TORCH_BOX(&rows_in_place));
}
