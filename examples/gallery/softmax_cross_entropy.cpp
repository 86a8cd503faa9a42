// Cross entropy of rows of logits against integer labels, and its gradient: see softmax_cross_entropy.py.
#include <custom_autograd/kernel.h>

#include <optional>
#include <tuple>
#include <vector>

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

enum Reduction : int64_t { MEAN, SUM, NONE };

static int64_t kept_rows(const Tensor& labels, int64_t ignore_index) {
  const int64_t* label = read<int64_t>(labels);
  return labels.numel() - std::count(label, label + labels.numel(), ignore_index);
}

constexpr int64_t COST = 4;  // of an element with its exponential, in elements of other kernels: when threads share rows

// Returns the loss, of each row or of all, and per row the logarithm of the sum of exponentials. The loss of a row that
// is ignored is 0.
std::tuple<Tensor, Tensor> cross_entropy(
    const Tensor& logits, const Tensor& labels, int64_t ignore_index, int64_t reduction) {
  check_labels(logits, labels, ignore_index);
  int64_t rows = logits.size(0), classes = logits.size(1);
  Tensor loss, lse;
  for_element_type(logits, "logits", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    std::vector<int64_t> shape(reduction == NONE ? 1 : 0, rows);
    loss = allocate(logits, shape, statistic_type<T>);
    lse = allocate(logits, {rows}, statistic_type<T>);
    std::vector<S> losses(reduction == NONE ? 0 : rows);
    const T* logits_data = read<T>(logits);
    const int64_t* label = read<int64_t>(labels);
    S *losses_data = reduction == NONE ? write<S>(loss) : losses.data(), *lse_data = write<S>(lse);
    for_rows(rows, COST * classes, [=](int64_t first, int64_t last) {
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
    if (reduction == NONE) return;
    double total = 0;  // in one order, whatever the number of threads
    for (S row_loss : losses) total += row_loss;
    *write<S>(loss) = static_cast<S>(reduction == MEAN ? total / kept_rows(labels, ignore_index) : total);
  });
  return {loss, lse};
}

// A few numbers, converted if need be.
static Tensor in_type(const Tensor& tensor, ScalarType type) {
  return tensor.scalar_type() == type ? tensor : torch::stable::to(tensor, type);
}

// logits_grad = exp(logits - lse) * (on_label + grad_lse), minus on_label at the label. on_label is the gradient of a
// row's own loss: its share of grad_loss, and 0 where it is ignored.
Tensor cross_entropy_grad(const Tensor& grad_loss, const std::optional<Tensor>& grad_lse, const Tensor& logits,
    const Tensor& labels, const Tensor& lse, int64_t ignore_index, int64_t reduction) {
  check_labels(logits, labels, ignore_index);
  check_contiguous(grad_loss, "grad_loss");
  check_contiguous(lse, "lse");
  if (grad_lse) check_contiguous(*grad_lse, "grad_lse");
  int64_t rows = logits.size(0), classes = logits.size(1);
  STD_TORCH_CHECK(lse.numel() == rows && (!grad_lse || grad_lse->numel() == rows),
      "'lse' and 'grad_lse' must have one element per row of 'logits'");
  STD_TORCH_CHECK(grad_loss.numel() == (reduction == NONE ? rows : 1),
      "'grad_loss' must have one element, or for reduction 'none' one per row of 'logits'");
  Tensor logits_grad = allocate_like(logits);
  for_element_type(logits, "logits", [&](auto element) {
    using T = decltype(element);
    using S = Statistic<T>;
    Tensor loss_wide = in_type(grad_loss, statistic_type<T>), lse_wide = in_type(lse, statistic_type<T>);
    Tensor grad_lse_wide = grad_lse ? in_type(*grad_lse, statistic_type<T>) : Tensor();
    const T* logits_data = read<T>(logits);
    const int64_t* label = read<int64_t>(labels);
    const S *lse_data = read<S>(lse_wide), *on_loss = read<S>(loss_wide);
    const S* on_lse = grad_lse ? read<S>(grad_lse_wide) : nullptr;
    S divisor = reduction == MEAN ? S(std::max<int64_t>(1, kept_rows(labels, ignore_index))) : S(1);
    T* result_data = write<T>(logits_grad);
    for_rows(rows, COST * classes, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* in = logits_data + row * classes;
        T* result = result_data + row * classes;
        bool is_kept = label[row] != ignore_index;
        S on_label = is_kept ? on_loss[reduction == NONE ? row : 0] / divisor : S(0);
        S total = lse_data[row], factor = on_lse ? on_label + on_lse[row] : on_label;
#pragma omp simd
        for (int64_t i = 0; i < classes; ++i) {
          result[i] = narrow<T>(exponential(widen(in[i]) - total) * factor);
        }
        if (!is_kept) continue;
        // From the logit again: result[i] is rounded already, and the difference may be small.
        S softmax = exponential(widen(in[label[row]]) - total);
        result[label[row]] = narrow<T>(softmax * factor - on_label);
      }
    });
  });
  return logits_grad;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, int ignore_index, int reduction) -> (Tensor, Tensor)");
  m.def(
      "cross_entropy_grad(Tensor grad_loss, Tensor? grad_lse, Tensor logits, Tensor labels, Tensor lse, "
      "int ignore_index, int reduction) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  m.impl("cross_entropy_grad", TORCH_BOX(&cross_entropy_grad));
}
