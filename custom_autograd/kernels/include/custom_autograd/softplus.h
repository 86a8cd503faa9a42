// softplus(x) = log(1 + exp(x)) and the logarithm that it needs. Loops over them vectorise.
#pragma once

#include <custom_autograd/kernel.h>

namespace custom_autograd {

// The natural logarithm of a normal positive number within one unit in the last place (Cephes, logf).
inline double logarithm(double value) { return std::log(value); }
inline float logarithm(float value) {
  int32_t bits = bits_as<int32_t>(value) - 0x3F3504F3;  // of sqrt(1/2): the fraction lies in [sqrt(1/2), sqrt(2))
  float exponent = static_cast<float>(bits >> 23);
  float x = bits_as<float>((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
  float series = 7.0376836292e-2f;
  series = series * x - 1.1514610310e-1f;
  series = series * x + 1.1676998740e-1f;
  series = series * x - 1.2420140846e-1f;
  series = series * x + 1.4249322787e-1f;
  series = series * x - 1.6668057665e-1f;
  series = series * x + 2.0000714765e-1f;
  series = series * x - 2.4999993993e-1f;
  series = series * x + 3.3333331174e-1f;
  float square = x * x;
  float tail = series * x * square - 2.12194440e-4f * exponent - 0.5f * square;
  return x + tail + 0.693359375f * exponent;
}

// As torch: above 20 the value itself, whose difference is below a float's resolution. NaN stays NaN.
template <typename S>
inline S softplus(S value) {
  S e = exponential(value);
  S sum = 1 + e;
  S result = logarithm(sum) + (e - (sum - 1)) / sum;  // the second term is what rounding 1 + e has lost
  return value <= S(20) ? result : value;
}

// The derivative of softplus: 1 / (1 + exp(-x)), and 1 where softplus is the value itself.
template <typename S>
inline S softplus_slope(S value) {
  return value > S(20) ? S(1) : 1 / (1 + exponential(-value));
}

}  // namespace custom_autograd
