// Cross entropy of rows of logits against integer labels, and its gradient: see softmax_cross_entropy.py.
#include <custom_autograd/kernel.h>

#include <tuple>

using namespace custom_autograd;

static void check_labels(const Tensor& logits, const Tensor& labels, int64_t ignore_index) {
  check_contiguous(logits, "logits");
  check_contiguous(labels, "labels");
  STD_TORCH_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0),
      "'logits' must be (rows, classes) and 'labels' (rows,)");
  STD_TORCH_CHECK(labels.scalar_type() == ScalarType::Long, "'labels' must be int64");
  const int64_t* label = read<int64_t>(labels);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    STD_TORCH_CHECK(label[row] == ignore_index || (label[row] >= 0 && label[row] < logits.size(1)),
        "label ", label[row], " in row ", row, " is neither a class in [0, ", logits.size(1),
        ") nor ignore_index (", ignore_index, ")");
  }
}

// Returns per row the loss, 0 where it is ignored, and the logarithm of the sum of exponentials.
std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& labels, int64_t ignore_index) {
  check_labels(logits, labels, ignore_index);
  int64_t rows = logits.size(0), classes = logits.size(1);
  Tensor losses, lse;
  for_element_type(logits, "logits", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    losses = torch::stable::new_empty(logits, {rows}, statistic_type<T>);
    lse = torch::stable::new_empty(logits, {rows}, statistic_type<T>);
    const T* logits_data = read<T>(logits);
    const int64_t* label = read<int64_t>(labels);
    S *losses_data = write<S>(losses), *lse_data = write<S>(lse);
    for_rows(rows, classes, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = logits_data + row * classes;
        S largest = -std::numeric_limits<S>::infinity();
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < classes; ++i) largest = widen(in[i]) > largest ? widen(in[i]) : largest;
        // Of a row of -infinity, or with +infinity in it, the differences are NaN; torch has -infinity and +infinity.
        S shift = std::isinf(largest) ? S(0) : largest;
        S sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < classes; ++i) sum += exponential(widen(in[i]) - shift);
        bool is_infinite = largest == std::numeric_limits<S>::infinity() && !std::isnan(sum);
        S total = is_infinite ? largest : std::log(sum) + shift;
        lse_data[row] = total;
        losses_data[row] = label[row] == ignore_index ? S(0) : total - widen(in[label[row]]);
      }
    });
  });
  return {losses, lse};
}

// logits_grad = exp(logits - lse) * on_softmax, minus on_label at the label.
Tensor cross_entropy_grad(const Tensor& logits, const Tensor& labels, const Tensor& lse, const Tensor& on_softmax,
    const Tensor& on_label) {
  if (logits.numel() == 0) return torch::stable::empty_like(logits);  // labels of ignored rows are 0, also of no class
  check_labels(logits, labels, 0);
  check_contiguous(lse, "lse");
  check_contiguous(on_softmax, "on_softmax");
  check_contiguous(on_label, "on_label");
  int64_t rows = logits.size(0), classes = logits.size(1);
  STD_TORCH_CHECK(lse.numel() == rows && on_softmax.numel() == rows && on_label.numel() == rows,
      "'lse', 'on_softmax' and 'on_label' must have one element per row of 'logits'");
  Tensor logits_grad = torch::stable::empty_like(logits);
  for_element_type(logits, "logits", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    check_type(lse, statistic_type<T>, "lse");
    check_type(on_softmax, statistic_type<T>, "on_softmax");
    check_type(on_label, statistic_type<T>, "on_label");
    const T* logits_data = read<T>(logits);
    const int64_t* label = read<int64_t>(labels);
    const S *lse_data = read<S>(lse), *softmax_data = read<S>(on_softmax), *label_data = read<S>(on_label);
    T* result_data = write<T>(logits_grad);
    for_rows(rows, classes, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = logits_data + row * classes;
        T* result = result_data + row * classes;
        S total = lse_data[row], factor = softmax_data[row];
#pragma omp simd
        for (int64_t i = 0; i < classes; ++i) {
          result[i] = narrow<T>(exponential(widen(in[i]) - total) * factor);
        }
        // From the logit again: result[i] is rounded already, and the difference may be small.
        S softmax = exponential(widen(in[label[row]]) - total);
        result[label[row]] = narrow<T>(softmax * factor - label_data[row]);
      }
    });
  });
  return logits_grad;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, int ignore_index) -> (Tensor, Tensor)");
  m.def("cross_entropy_grad(Tensor logits, Tensor labels, Tensor lse, Tensor on_softmax, Tensor on_label) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  m.impl("cross_entropy_grad", TORCH_BOX(&cross_entropy_grad));
}
