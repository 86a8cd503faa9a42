// The k largest or smallest of each row, and each row sorted, with their positions: see sorting.py.
#include <custom_autograd/order.h>

#include <tuple>
#include <vector>

using namespace custom_autograd;

// The key by which the wanted order is the rising one.
template <typename T>
static Key<T> wanted_key(T value, bool descending) {
  return descending ? Key<T>(~key_of(value)) : key_of(value);
}

template <typename T>
static void write_words(const T* in, const Word<T>* words, int64_t count, T* values, int64_t* indices) {
  for (int64_t i = 0; i < count; ++i) {
    indices[i] = position_of<T>(words[i]);
    values[i] = in[indices[i]];  // from the row, not from the key: NaN and zeros keep their bits
  }
}

// Selects the k first of one row in the wanted order.
//
// Most numbers are no candidates: each block is compared with the key of the worst of the k best so far, and only a
// block with a better one is looked at again. An equal one is no better: it stands further behind.
template <typename T>
class Selection {
 public:
  explicit Selection(int64_t k) : k_(k), words_(2 * k + 512) {}

  const Word<T>* operator()(const T* in, int64_t count, bool descending) {
    constexpr int64_t block = 64;
    Key<T> keys[block];
    size_ = 0;
    worst_ = std::numeric_limits<Key<T>>::max();  // no number has this key
    for (int64_t first = 0; first < count; first += block) {
      int64_t width = std::min(block, count - first);
      Key<T> is_better = 0;
#pragma omp simd reduction(| : is_better)
      for (int64_t i = 0; i < width; ++i) {
        keys[i] = wanted_key(in[first + i], descending);
        is_better |= Key<T>(keys[i] < worst_);
      }
      if (!is_better) continue;
      if (size_ + block > static_cast<int64_t>(words_.size())) keep_best();
      for (int64_t i = 0; i < width; ++i) {
        words_[size_] = word_of<T>(keys[i], first + i);
        size_ += keys[i] < worst_;
      }
    }
    if (size_ > k_) keep_best();
    std::sort(words_.begin(), words_.begin() + k_);  // positions do not rise after a selection: no radix sort
    return words_.data();
  }

 private:
  void keep_best() {
    auto last = words_.begin() + (k_ - 1);
    std::nth_element(words_.begin(), last, words_.begin() + size_);
    worst_ = Key<T>(*last >> position_bits<T>);
    size_ = k_;
  }

  int64_t k_, size_ = 0;
  Key<T> worst_ = 0;
  std::vector<Word<T>> words_;
};

std::tuple<Tensor, Tensor> top_k(const Tensor& x, int64_t k, bool largest) {
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.dim() > 0, "'x' must have a dimension to select from");
  int64_t count = x.size(-1), rows = row_count(x);
  STD_TORCH_CHECK(k >= 0 && k <= count, "'k' must be from 0 to ", count, ", the size of the last dimension, found ", k);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = k;
  Tensor values = allocate(x, shape);
  Tensor indices = allocate(x, shape, ScalarType::Long);
  if (k == 0) return {values, indices};
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    check_positions<T>(count);
    const T* in = read<T>(x);
    T* values_data = write<T>(values);
    int64_t* indices_data = write<int64_t>(indices);
    for_rows(rows, count, [=](int64_t first, int64_t last) {
      Selection<T> select(k);
      for (int64_t row = first; row < last; ++row) {
        const T* line = in + row * count;
        write_words(line, select(line, count, largest), k, values_data + row * k, indices_data + row * k);
      }
    });
  });
  return {values, indices};
}

std::tuple<Tensor, Tensor> sort(const Tensor& x, bool descending) {
  check_contiguous(x, "x");
  STD_TORCH_CHECK(x.dim() > 0, "'x' must have a dimension to sort");
  int64_t count = x.size(-1), rows = row_count(x);
  Tensor values = allocate_like(x);
  Tensor indices = allocate(x, x.sizes(), ScalarType::Long);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    check_positions<T>(count);
    const T* in = read<T>(x);
    T* values_data = write<T>(values);
    int64_t* indices_data = write<int64_t>(indices);
    for_rows(rows, count, [=](int64_t first, int64_t last) {
      std::vector<Word<T>> words(count), spare(count);
      for (int64_t row = first; row < last; ++row) {
        const T* line = in + row * count;
        for (int64_t i = 0; i < count; ++i) words[i] = word_of<T>(wanted_key(line[i], descending), i);
        const Word<T>* sorted = sort_words<T>(words.data(), spare.data(), count);
        write_words(line, sorted, count, values_data + row * count, indices_data + row * count);
      }
    });
  });
  return {values, indices};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("top_k(Tensor x, int k, bool largest) -> (Tensor, Tensor)");
  m.def("sort(Tensor x, bool descending) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("top_k", TORCH_BOX(&top_k));
  m.impl("sort", TORCH_BOX(&sort));
}
