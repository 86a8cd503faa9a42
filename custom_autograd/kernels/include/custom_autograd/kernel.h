// What a CPU kernel needs beside its own arithmetic: element types, rows in parallel, and an exponential that vectorises.
//
// Everything stands on torch's stable ABI (torch/csrc/stable), so a kernel compiles in about a second and does not
// depend on the C++ classes of one torch version.
#pragma once

#include <custom_autograd/exceptions.h>

#include <custom_autograd/addresses.h>
#include <custom_autograd/trial.h>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <custom_autograd/types.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifndef STABLE_TORCH_ERROR_CODE_CHECK  // torch 2.13 gave it this name
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

namespace custom_autograd {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The type sums are kept in: double for double, else float.
template <typename T>
using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
constexpr ScalarType statistic_type = std::is_same_v<T, double> ? ScalarType::Double : ScalarType::Float;

template <typename To, typename From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

// widen and narrow are free of branches and of calls, so that loops over them vectorise; compilers of 2022 do not
// vectorise conversions of _Float16, so half precision goes by its bits, as in Maratyszcza's FP16 library.
inline double widen(double value) { return value; }
inline float widen(float value) { return value; }
inline float widen(BFloat16 value) { return bits_as<float>(static_cast<uint32_t>(value.x) << 16); }
inline float widen(Half value) {
  uint32_t word = static_cast<uint32_t>(value.x) << 16;
  uint32_t sign = word & 0x80000000u, twice = word + word;
  float normal = bits_as<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  float subnormal = bits_as<float>((twice >> 17) | (126u << 23)) - 0.5f;
  uint32_t magnitude = twice < (1u << 27) ? bits_as<uint32_t>(subnormal) : bits_as<uint32_t>(normal);
  return bits_as<float>(sign | magnitude);
}

// To the nearest value of T, ties to even.
template <typename T>
inline T narrow(Statistic<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    uint32_t word = bits_as<uint32_t>(value);
    uint32_t rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    return bits_as<BFloat16>(static_cast<uint16_t>(value != value ? 0x7FC0u : rounded));
  } else if constexpr (std::is_same_v<T, Half>) {
    uint32_t word = bits_as<uint32_t>(value), twice = word + word;
    uint32_t exponent = std::max(twice & 0xFF000000u, 0x71000000u);
    float magnitude = (bits_as<float>(word & 0x7FFFFFFFu) * 0x1.0p+112f) * 0x1.0p-110f;
    uint32_t rounded = bits_as<uint32_t>(bits_as<float>((exponent >> 1) + 0x07800000u) + magnitude);
    uint32_t finite = ((rounded >> 13) & 0x7C00u) + (rounded & 0x0FFFu);
    return bits_as<Half>(static_cast<uint16_t>((word >> 16 & 0x8000u) | (twice > 0xFF000000u ? 0x7E00u : finite)));
  } else {
    return value;
  }
}

// exp(value) within one unit in the last place, without branches; below -87 it is 0, above 88 infinity. NaN stays NaN.
inline double exponential(double value) { return std::exp(value); }
inline float exponential(float value) {
  float clamped = value < -87.0f ? -87.0f : value > 88.0f ? 88.0f : value;
  float power = clamped * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  int32_t exponent;
  std::memcpy(&exponent, &power, sizeof(exponent));
  power -= 12582912.0f;
  float rest = clamped - power * 0.693359375f + power * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  uint32_t bits = static_cast<uint32_t>(exponent - 0x4B400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  float result = value < -87.0f ? 0.0f : series * scale;
  return value > 88.0f ? std::numeric_limits<float>::infinity() : result;
}

// Calls work(first, last) on ranges of rows, in torch's threads; a range holds at least about 32k elements.
template <typename Work>
void for_rows(int64_t rows, int64_t elements_per_row, const Work& work) {
  if (rows == 0) {
    return;
  }
  int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, elements_per_row));
  torch::stable::parallel_for(0, rows, grain, work);
}

// Calls work(T{}) with the element type of a tensor.
template <typename Work>
void for_element_type(const Tensor& tensor, const char* argument, const Work& work) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return work(float{});
    case ScalarType::Double: return work(double{});
    case ScalarType::BFloat16: return work(BFloat16{});
    case ScalarType::Half: return work(Half{});
    default: STD_TORCH_CHECK(false, "'", argument, "' must be float64, float32, bfloat16 or float16");
  }
}

inline void check_contiguous(const Tensor& tensor, const char* argument) {
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.is_contiguous(),
      "'", argument, "' must be a contiguous CPU tensor (a kernel for other devices passes the tensor to compare with)");
}

inline void check_type(const Tensor& tensor, ScalarType type, const char* argument) {
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.scalar_type() == type,
      "'", argument, "' must be a CPU tensor of dtype ", torch::headeronly::toString(type), ", found ",
      torch::headeronly::toString(tensor.scalar_type()));
}

inline bool is_on_device_of(const Tensor& tensor, const Tensor& like) {
  int32_t its, expected;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &its));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &expected));
  return its == expected && tensor.get_device_index() == like.get_device_index();
}

// The same for a kernel of any device type, which passes the tensor that the others have to be on the device of.
inline void check_contiguous(const Tensor& tensor, const char* argument, const Tensor& like) {
  STD_TORCH_CHECK(
      is_on_device_of(tensor, like) && tensor.is_contiguous(),
      "'", argument, "' must be a contiguous tensor on the device of the others");
}

inline void check_type(const Tensor& tensor, ScalarType type, const char* argument, const Tensor& like) {
  STD_TORCH_CHECK(
      is_on_device_of(tensor, like) && tensor.scalar_type() == type,
      "'", argument, "' must be a tensor of dtype ", torch::headeronly::toString(type),
      " on the device of the others, found ", torch::headeronly::toString(tensor.scalar_type()));
}

// A new contiguous tensor on the device of another, without values. It takes half the time of torch::stable::new_empty,
// which looks up an operator by its name.
inline Tensor allocate(const Tensor& like, const int64_t* sizes, int64_t dims, ScalarType type) {
  constexpr int64_t most = 64;
  STD_TORCH_CHECK(dims <= most, "a tensor has at most 64 dimensions");
  int64_t strides[most], stride = 1;
  for (int64_t dim = dims - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(1, sizes[dim]);
  }
  int32_t device, index;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes, strides, static_cast<int32_t>(type), device, index, &made));
  return Tensor(made);
}

inline Tensor allocate(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef shape, ScalarType type) {
  return allocate(like, shape.data(), static_cast<int64_t>(shape.size()), type);
}

inline Tensor allocate(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef shape) {
  return allocate(like, shape, like.scalar_type());
}

inline Tensor allocate_like(const Tensor& tensor) {
  int64_t* sizes;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  return allocate(tensor, sizes, tensor.dim(), tensor.scalar_type());
}

// How many rows there are along the last dimension, also where a row has no elements.
inline int64_t row_count(const Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) rows *= tensor.size(dim);
  return rows;
}

// Raises for elements of another type than T: they would be read as something else, and beyond the end of the tensor.
template <typename T>
void check_elements(const Tensor& tensor) {
  constexpr ScalarType type = torch::headeronly::CppTypeToScalarType<T>::value;
  ScalarType found = tensor.scalar_type();
  STD_TORCH_CHECK(
      found == type, "the kernel reads or writes a tensor of dtype ", torch::headeronly::toString(found), " as ",
      torch::headeronly::toString(type), ": convert it before the call, or let the kernel refuse that dtype");
}

// The elements of a tensor from its first one; the kernel must respect the strides.
template <typename T>
const T* read(const Tensor& tensor) {
  check_elements<T>(tensor);
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <typename T>
T* write(const Tensor& tensor) {
  check_elements<T>(tensor);
  return static_cast<T*>(tensor.mutable_data_ptr());
}

}  // namespace custom_autograd
