// Writes new keys and values to a cache where they belong, elements as they are: see kv_cache_append.py.
#include <custom_autograd/kernel.h>

#include <vector>

using namespace custom_autograd;

// The bytes from the first element to behind the last, along dimensions of strides below the period; the strides of
// the others must be multiples of it.
static int64_t reach(const Tensor& tensor, int64_t period) {
  int64_t size = tensor.element_size(), last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) < 2) continue;
    int64_t stride = tensor.stride(dim) * size;
    if (stride >= period && stride % period != 0) return std::numeric_limits<int64_t>::max();
    if (stride < period) last += (tensor.size(dim) - 1) * stride;
  }
  return last + size;
}

// Whether in each period one tensor ends before the other begins.
static bool are_apart_in(const Tensor& one, const Tensor& other, int64_t period) {
  int64_t distance = static_cast<const char*>(other.const_data_ptr()) - static_cast<const char*>(one.const_data_ptr());
  int64_t offset = (distance % period + period) % period;
  return reach(one, period) <= offset && offset <= period - reach(other, period);
}

// Whether no byte is in both: one begins behind the other, or they interleave, as halves of one table of both do.
static bool are_apart(const Tensor& one, const Tensor& other) {
  if (one.numel() == 0 || other.numel() == 0 || are_apart_in(one, other, int64_t(1) << 62)) return true;
  for (const Tensor* tensor : {&one, &other}) {
    for (int64_t dim = 0; dim < tensor->dim(); ++dim) {
      int64_t period = tensor->stride(dim) * tensor->element_size();
      if (period > 0 && are_apart_in(one, other, period)) return true;
    }
  }
  return false;
}

static void check_apart(const Tensor& fresh, const Tensor& cache, const char* name, const char* cache_name) {
  STD_TORCH_CHECK(are_apart(fresh, cache), "'", name, "' lies within '", cache_name, "': clone it");
}

static void check_pair(const Tensor& cache, const Tensor& fresh, const char* cache_name, const char* name) {
  STD_TORCH_CHECK(cache.is_cpu() && fresh.is_cpu() && cache.dim() == 4 && fresh.dim() == 4 &&
          cache.size(0) == fresh.size(0) && cache.size(1) == fresh.size(1) && cache.size(3) == fresh.size(3),
      "'", cache_name, "' must be (batch, heads, length, features) and '", name, "' (batch, heads, tokens, features)");
  STD_TORCH_CHECK(cache.scalar_type() == fresh.scalar_type(), "'", name, "' must have the dtype of '", cache_name, "'");
  if (fresh.numel() == 0) return;
  for (int64_t dim = 0; dim < 4; ++dim) {
    STD_TORCH_CHECK(cache.stride(dim) != 0 || cache.size(dim) < 2,
        "'", cache_name, "' is expanded, so its elements share memory: clone it");
  }
}

// cache[b, h, starts[b] + t] = fresh[b, h, t], in elements of one size.
template <typename Word>
static void copy_rows(const Tensor& cache, const Tensor& fresh, const std::vector<int64_t>& starts) {
  int64_t heads = fresh.size(1), tokens = fresh.size(2), features = fresh.size(3);
  const int64_t cache_strides[] = {cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3)};
  const int64_t strides[] = {fresh.stride(0), fresh.stride(1), fresh.stride(2), fresh.stride(3)};
  bool in_rows = cache_strides[3] == 1 && strides[3] == 1;
  bool in_blocks = in_rows && cache_strides[2] == features && strides[2] == features;
  Word* to = static_cast<Word*>(cache.mutable_data_ptr());
  const Word* from = static_cast<const Word*>(fresh.const_data_ptr());
  for_rows(fresh.size(0) * heads, tokens * features, [=, &starts](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      int64_t batch = index / heads, head = index % heads;
      Word* target = to + batch * cache_strides[0] + head * cache_strides[1] + starts[batch] * cache_strides[2];
      const Word* source = from + batch * strides[0] + head * strides[1];
      if (in_blocks) {
        std::memcpy(target, source, sizeof(Word) * tokens * features);
        continue;
      }
      for (int64_t token = 0; token < tokens; ++token) {
        Word* row = target + token * cache_strides[2];
        const Word* values = source + token * strides[2];
        if (in_rows) {
          std::memcpy(row, values, sizeof(Word) * features);
        } else {
          for (int64_t i = 0; i < features; ++i) row[i * cache_strides[3]] = values[i * strides[3]];
        }
      }
    }
  });
}

static void append(const Tensor& cache, const Tensor& fresh, const std::vector<int64_t>& starts) {
  if (fresh.numel() == 0) return;
  switch (cache.element_size()) {
    case 1: return copy_rows<uint8_t>(cache, fresh, starts);
    case 2: return copy_rows<uint16_t>(cache, fresh, starts);
    case 4: return copy_rows<uint32_t>(cache, fresh, starts);
    case 8: return copy_rows<uint64_t>(cache, fresh, starts);
    default: STD_TORCH_CHECK(false, "elements of ", cache.element_size(), " bytes are not known");
  }
}

// Caches: (batch, heads, length, features); keys, values: (batch, heads, tokens, features); positions: (batch,), int64.
// Nothing is written before everything has been looked at.
void kv_cache_append(const Tensor& key_cache, const Tensor& value_cache, const Tensor& keys, const Tensor& values,
    const Tensor& positions) {
  check_pair(key_cache, keys, "key_cache", "keys");
  check_pair(value_cache, values, "value_cache", "values");
  check_apart(keys, key_cache, "keys", "key_cache");
  check_apart(keys, value_cache, "keys", "value_cache");
  check_apart(values, key_cache, "values", "key_cache");
  check_apart(values, value_cache, "values", "value_cache");
  check_apart(value_cache, key_cache, "value_cache", "key_cache");
  STD_TORCH_CHECK(key_cache.size(2) == value_cache.size(2) && keys.size(2) == values.size(2) && keys.size(0) == values.size(0),
      "keys and values must have the same batch, length and tokens");
  check_contiguous(positions, "positions");
  STD_TORCH_CHECK(positions.scalar_type() == ScalarType::Long && positions.numel() == keys.size(0),
      "'positions' must be (batch,), int64");
  int64_t length = key_cache.size(2), tokens = keys.size(2);
  const int64_t* first = read<int64_t>(positions);
  std::vector<int64_t> starts(first, first + positions.numel());
  for (size_t batch = 0; batch < starts.size(); ++batch) {
    STD_TORCH_CHECK(starts[batch] >= 0 && starts[batch] <= length - tokens, "row ", batch, " of the batch: ", tokens,
        " tokens from position ", starts[batch], " do not fit a cache of length ", length);
  }
  append(key_cache, keys, starts);
  append(value_cache, values, starts);
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("kv_cache_append(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor keys, Tensor values, Tensor positions) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("kv_cache_append", TORCH_BOX(&kv_cache_append));
}
