// What becomes of an exception that torch raises below a C++ kernel: it goes on with its message, as torch's header
// makes it do, but its stack is not printed to stderr, since Python shows the message and may well catch it. Torch's
// header loses the class; that of a device without free memory is made again, because training loops catch it.
// Included before every other header of torch, whose inline functions use the macro.
#pragma once

#include <torch/csrc/stable/macros.h>

// Torch 2.13 is the first whose headers print and give the message; before, the library prints, and keeps the message.
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0

#include <c10/util/Exception.h>

#include <stdexcept>
#include <string>

namespace custom_autograd {

[[noreturn, maybe_unused]] static void raise_exception(const char* call) {
  std::string what = torch_exception_get_what_without_backtrace(), message = what + " (raised by " + call + ')';
  if (what.find(" out of memory. Tried to allocate ") != std::string::npos)  // of the allocators of CUDA and XPU
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  throw std::runtime_error(message);
}

}  // namespace custom_autograd

#undef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK(call)    \
  if ((call) != TORCH_SUCCESS) {               \
    ::custom_autograd::raise_exception(#call); \
  }
#endif
