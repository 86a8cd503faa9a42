// The order of torch.sort as an order of unsigned integers, and a stable sort by it.
//
// A number and its position become one word: the key above, the position below. Words are all different, so any way to
// sort them is stable, and comparing two of them costs one instruction.
#pragma once

#include <custom_autograd/kernel.h>

#include <array>

namespace custom_autograd {

template <typename T>
using Key = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <typename T>
using Word = std::conditional_t<sizeof(T) == 8, unsigned __int128, uint64_t>;

template <typename T>
constexpr int position_bits = sizeof(T) == 8 ? 64 : 32;

template <typename T>
constexpr int key_bits = 8 * sizeof(T);

// Keys are ordered as torch.sort orders numbers: -0 is equal to 0, and all NaN are equal and above infinity.
template <typename T>
inline Key<T> key_of(T value) {
  using K = Key<T>;
  constexpr K sign = K(1) << (key_bits<T> - 1);
  constexpr K infinity = std::is_same_v<T, double> ? K(0x7FF0000000000000u)
      : std::is_same_v<T, float> ? K(0x7F800000u) : std::is_same_v<T, BFloat16> ? K(0x7F80u) : K(0x7C00u);
  K bits = bits_as<K>(value), magnitude = bits & K(~sign);
  bits = magnitude > infinity ? K(infinity + 1) : magnitude == 0 ? K(0) : bits;
  return bits & sign ? K(~bits) : K(bits | sign);
}

template <typename T>
inline Word<T> word_of(Key<T> key, int64_t position) {
  return Word<T>(key) << position_bits<T> | Word<T>(static_cast<uint64_t>(position));
}

template <typename T>
inline int64_t position_of(Word<T> word) {
  return static_cast<int64_t>(position_bits<T> == 64 ? uint64_t(word) : uint64_t(word) & 0xFFFFFFFFu);
}

// Positions of 16- and 32-bit numbers have 32 bits.
template <typename T>
inline void check_positions(int64_t count) {
  STD_TORCH_CHECK(sizeof(T) == 8 || count <= int64_t(1) << 32, "a row has more than 2^32 elements: ", count);
}

// Sorts words whose positions rise, by radix from the lowest digit of the key on; `spare` holds as many words.
// Returns where the sorted words are: one of the two.
template <typename T>
Word<T>* sort_words(Word<T>* words, Word<T>* spare, int64_t count) {
  constexpr int64_t few = 1024;  // below it the histograms cost more than comparisons
  if (count < few) {
    std::sort(words, words + count);
    return words;
  }
  constexpr int digit_bits = sizeof(T) == 2 ? 8 : 11;
  constexpr int digits = (key_bits<T> + digit_bits - 1) / digit_bits;
  constexpr size_t buckets = size_t(1) << digit_bits;
  auto digit_of = [](Word<T> word, int digit) {
    return static_cast<size_t>(word >> (position_bits<T> + digit * digit_bits)) & (buckets - 1);
  };
  static thread_local std::array<std::array<int64_t, buckets>, digits> starts;
  for (auto& histogram : starts) histogram.fill(0);
  for (int64_t i = 0; i < count; ++i) {
    for (int digit = 0; digit < digits; ++digit) ++starts[digit][digit_of(words[i], digit)];
  }
  for (int digit = 0; digit < digits; ++digit) {
    auto& start = starts[digit];
    if (start[digit_of(words[0], digit)] == count) continue;  // all words have the same digit
    int64_t total = 0;
    for (int64_t& bucket : start) {
      int64_t its = bucket;
      bucket = total;
      total += its;
    }
    for (int64_t i = 0; i < count; ++i) spare[start[digit_of(words[i], digit)]++] = words[i];
    std::swap(words, spare);
  }
  return words;
}

}  // namespace custom_autograd
