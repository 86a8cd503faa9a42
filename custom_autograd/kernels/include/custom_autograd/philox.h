// Philox4x32-10, the counter-based generator of Salmon et al. 2011: random words as a function of a key and a counter.
#pragma once

#include <cstdint>

namespace custom_autograd {

inline uint32_t upper_half(uint32_t a, uint32_t b) { return static_cast<uint32_t>((uint64_t(a) * b) >> 32); }

// The four words of each counter in [first, first + COUNT), word by word: words[word * COUNT + counter - first]. Free of
// branches, so that the loop over counters vectorises. The upper half of the 128 bits of a counter is zero.
template <int COUNT>
inline void philox(uint64_t seed, uint64_t first, uint32_t (&words)[4 * COUNT]) {
#pragma omp simd
  for (int i = 0; i < COUNT; ++i) {
    uint32_t a = static_cast<uint32_t>(first + i), b = static_cast<uint32_t>((first + i) >> 32), c = 0, d = 0;
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      uint32_t low = upper_half(a, 0xD2511F53u), high = upper_half(c, 0xCD9E8D57u);
      uint32_t next_b = c * 0xCD9E8D57u, next_d = a * 0xD2511F53u;
      a = high ^ b ^ key0;
      c = low ^ d ^ key1;
      b = next_b;
      d = next_d;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    words[0 * COUNT + i] = a;
    words[1 * COUNT + i] = b;
    words[2 * COUNT + i] = c;
    words[3 * COUNT + i] = d;
  }
}

}  // namespace custom_autograd
