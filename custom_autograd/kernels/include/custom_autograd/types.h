// Notes the types of each function that TORCH_BOX registers, which are compared with its schema when the library is loaded.
// Included after torch's header of libraries, whose TORCH_BOX it takes the place of.
//
// torch reads the bytes of an argument as the type that the function declares: a `float` in place of a `double` is the
// lower half of its bits, and a std::optional in place of a value is a pointer to nowhere.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace custom_autograd::types {  // sources use the outer one, and have names of their own

// The type of a schema that arrives as a C++ type; "?" for one that is not compared.
template <typename T>
struct Spelled {
  static std::string text() {
    using torch::stable::Tensor;
    if constexpr (std::is_same_v<T, Tensor>) return "Tensor";
    else if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_same_v<T, double>) return "float";
    else if constexpr (std::is_integral_v<T>) return std::is_signed_v<T> && sizeof(T) == 8 ? "int" : "an integer of another size";
    else if constexpr (std::is_floating_point_v<T>) return "a floating-point number of another size";
    else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) return "str";
    else return "";
  }
};

template <typename T>
std::string spelled_with(const char* suffix) {
  std::string inner = Spelled<T>::text();
  return inner.empty() ? inner : inner + suffix;
}

template <typename T>
struct Spelled<std::optional<T>> {
  static std::string text() { return spelled_with<T>("?"); }
};

template <typename T>
struct Spelled<std::vector<T>> {
  static std::string text() { return spelled_with<T>("[]"); }
};

template <typename... Types>
std::string listed() {
  return (std::string() + ... + (Spelled<std::remove_cv_t<std::remove_reference_t<Types>>>::text() + ","));
}

template <typename Result>
struct Results {
  static std::string text() { return listed<Result>(); }
};

template <>
struct Results<void> {
  static std::string text() { return ""; }
};

template <typename... Types>
struct Results<std::tuple<Types...>> {
  static std::string text() { return listed<Types...>(); }
};

// Each type with a comma behind it: "Tensor,float,->Tensor,".
template <typename Result, typename... Parameters>
std::string spelled(Result (*)(Parameters...)) {
  return listed<Parameters...>() + "->" + Results<Result>::text();
}

struct Signature {
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
  std::string types;
};

static std::vector<Signature>& signatures() {
  static std::vector<Signature> found;
  return found;
}

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

template <auto function>
Boxed boxed() {
  return TORCH_BOX(function);
}

template <typename Function>
static Boxed noted(Boxed kernel, Function function) {
  signatures().push_back({kernel, spelled(function)});
  return kernel;
}

}  // namespace custom_autograd::types

#undef TORCH_BOX
#define TORCH_BOX(func) ::custom_autograd::types::noted(::custom_autograd::types::boxed<(func)>(), (func))

// The types of the parameters and the results of a kernel, or null if it was not registered with TORCH_BOX.
extern "C" __attribute__((used, visibility("default"))) const char* custom_autograd_types(const void* kernel) {
  for (const auto& one : custom_autograd::types::signatures())
    if (reinterpret_cast<const void*>(one.kernel) == kernel) return one.types.c_str();
  return nullptr;
}
