// Memory of the second device: the host's, labelled as memory of another device.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

namespace second_device {

inline const c10::Device DEVICE(c10::kPrivateUse1, 0);

// The same bytes with the same owner, labelled as memory of `device`.
inline at::DataPtr relabelled(at::DataPtr&& data, c10::Device device) {
  void* bytes = data.get();
  const auto deleter = data.get_deleter();
  return {bytes, data.release_context(), deleter, device};
}

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override { return relabelled(c10::GetCPUAllocator()->allocate(bytes), DEVICE); }
  at::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* target, const void* source, size_t bytes) const override { default_copy_data(target, source, bytes); }
};

inline Allocator allocator;

}  // namespace second_device
