// The kernel through which the trial of a new library raises an exception: see kernels/trial.py.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include <cstdint>

// A boxed kernel of torch's stable ABI that refuses its argument as kernels do. The message holds numbers: a library with a
// C++ runtime of its own can fail while it formats them, before it throws.
extern "C" __attribute__((used, visibility("default"))) void custom_autograd_raise(uint64_t* stack, uint64_t, uint64_t) {
  STD_TORCH_CHECK(stack == nullptr, "trial ", static_cast<int64_t>(*stack), ' ', 0.5);
}
