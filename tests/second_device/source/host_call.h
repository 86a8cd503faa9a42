// One call of an operator: host tensors for its arguments, and tensors of the device for its results.
//
// A host tensor has a StorageImpl that shares the bytes with that of the device's tensor. It cannot be the same
// StorageImpl: views that a CPU kernel makes take their device from the storage.
#pragma once
#include "memory.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace second_device {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

// A tensor over `storage` with the sizes, strides, dtype and lazy bits of another one.
//
// The keys are given, as for a view: the usual constructor makes every tensor an inference tensor in inference mode, and a
// view of a normal tensor is a normal tensor there too.
inline Tensor with_storage(const Tensor& like, c10::Storage storage, DispatchKey key) {
  const auto backend = c10::toBackendComponent(key);
  const DispatchKeySet lazy({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  auto keys = DispatchKeySet(key) | (like.key_set() & lazy) | c10::getAutocastRelatedKeySetFromBackend(backend);
  if (!like.is_inference()) keys = keys | c10::getAutogradRelatedKeySetFromBackend(backend);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys, like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.dim() == 0) impl->set_wrapped_number(like.unsafeGetTensorImpl()->is_wrapped_number());  // asserts dim() == 0
  return made;
}

class HostCall {
 public:
  bool has_cpu_tensor = false;  // among the arguments, with dimensions: kernels of accelerators refuse it

  Tensor to_host(const Tensor& tensor, bool may_be_cpu) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) {
      has_cpu_tensor |= !may_be_cpu && tensor.dim() != 0;
      if (tensor.has_storage()) cpu_arguments_.push_back(tensor.storage().unsafeGetStorageImpl());
      return tensor;
    }
    for (const auto& [ours, host] : tensors_)
      if (ours.is_same(tensor)) return host;
    tensors_.emplace_back(tensor, with_storage(tensor, to_host(tensor.storage()), DispatchKey::CPU));
    return tensors_.back().second;
  }

  // One for each storage and call, so that aliases among the arguments stay aliases.
  c10::Storage to_host(const c10::Storage& ours) {
    auto* impl = ours.unsafeGetStorageImpl();
    if (auto found = host_of_.find(impl); found != host_of_.end()) return found->second;
    auto* owner = new c10::Storage(ours);
    at::DataPtr data(impl->mutable_data(), owner, [](void* held) { delete static_cast<c10::Storage*>(held); }, c10::kCPU);
    c10::Storage host(c10::Storage::use_byte_size_t(), impl->nbytes(), std::move(data), c10::GetCPUAllocator(), true);
    host_of_.emplace(impl, host);
    ours_of_.emplace(host.unsafeGetStorageImpl(), ours);
    return host;
  }

  // Gives arguments the memory, sizes and strides that the kernel gave their host tensors (`resize_`, `set_`, `out=`).
  void write_back() {
    for (auto& [impl, host] : host_of_) {
      auto* written = host.unsafeGetStorageImpl();
      if (written->data() == impl->data() && written->nbytes() == impl->nbytes()) continue;
      impl->set_nbytes(written->nbytes());
      impl->set_data_ptr_noswap(relabelled(std::move(written->_mutable_data_ptr_no_checks()), DEVICE));
    }
    for (auto& [ours, host] : tensors_) {
      auto* impl = ours.unsafeGetTensorImpl();
      const auto storage = from_host(host.storage());
      if (!storage.is_alias_of(ours.storage())) impl->set_storage_keep_dtype(storage);
      if (host.sizes() != ours.sizes() || host.strides() != ours.strides() || host.storage_offset() != ours.storage_offset())
        impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  Tensor from_host(const Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(result.has_storage(), "the device 'second' has strided tensors only");
    // A result may be a CPU argument (`_copy_from` returns its target), whose memory stays the CPU's.
    const auto* storage = result.storage().unsafeGetStorageImpl();
    if (std::count(cpu_arguments_.begin(), cpu_arguments_.end(), storage)) return result;
    for (const auto& [ours, host] : tensors_)
      if (host.is_same(result)) return ours;
    return with_storage(result, from_host(result.storage()), DispatchKey::PrivateUse1);
  }

 private:
  // The storage of an argument, else new memory of the kernel, which changes its owner.
  c10::Storage from_host(const c10::Storage& host) {
    auto* impl = host.unsafeGetStorageImpl();
    if (auto found = ours_of_.find(impl); found != ours_of_.end()) return found->second;
    if (impl->device_type() == c10::kCPU) {
      impl->set_data_ptr_noswap(relabelled(std::move(impl->_mutable_data_ptr_no_checks()), DEVICE));
      impl->set_allocator(&allocator);
    }
    return host;
  }

  std::unordered_map<c10::StorageImpl*, c10::Storage> host_of_, ours_of_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;  // of the device, and on the host
  std::vector<const c10::StorageImpl*> cpu_arguments_;
};

}  // namespace second_device
