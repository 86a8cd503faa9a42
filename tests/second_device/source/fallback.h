// Every operator of the second device: the CPU's kernel, on host tensors that share the memory of the arguments.
#pragma once
#include "host_call.h"
#include "random_numbers.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace second_device {

using c10::IValue;
using torch::jit::Stack;

class Counts {
 public:
  void add(const std::string& name) {
    std::lock_guard lock(mutex_);
    ++by_name_[name];
  }
  int64_t of(const std::string& name) {
    std::lock_guard lock(mutex_);
    return by_name_[name];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> by_name_;
};

inline Counts counts;  // how often each operator ran here
inline std::atomic<bool> is_lost{false};  // after an index beyond a tensor: an accelerator refuses none, and fails from then on

inline bool is_copy(const std::string& name) { return name == "aten::_copy_from"; }
inline bool has_indices(const std::string& name) { return name == "aten::index" || name == "aten::_index_put_impl_"; }

// Replaces an argument by its host equivalent, and takes out a generator of the device.
inline void take(IValue& value, const std::string& name, HostCall& call, std::optional<at::Generator>& generator) {
  if (value.isTensor()) {
    value = call.to_host(value.toTensor(), is_copy(name));
  } else if (value.isTensorList()) {
    std::vector<Tensor> host;
    for (const Tensor& tensor : value.toTensorVector()) host.push_back(call.to_host(tensor, false));
    value = c10::List<Tensor>(host);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> host;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      host.push_back(tensor ? std::optional(call.to_host(*tensor, has_indices(name))) : std::nullopt);
    value = host;
  } else if (value.isStorage() && value.toStorage().device_type() == c10::kPrivateUse1) {
    value = call.to_host(value.toStorage());
  } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
    value = c10::Device(c10::kCPU);
  } else if (value.isGenerator()) {
    generator = value.toGenerator();
    TORCH_CHECK(generator->device().is_privateuseone(), "Expected a 'second' device type for generator but found '",
                generator->device().type(), "'");
    value = IValue();
  }
}

inline void give(IValue& value, HostCall& call) {
  if (value.isTensor()) {
    value = call.from_host(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<Tensor> ours;
    for (const Tensor& tensor : value.toTensorVector()) ours.push_back(call.from_host(tensor));
    value = c10::List<Tensor>(ours);
  }
}

// `copy_` calls `_copy_from(source, target, non_blocking)` for every other device; the CPU has no kernel for it.
inline void copy(Stack* stack) {
  auto arguments = torch::jit::pop(*stack, 3);
  arguments[1].toTensor().copy_(arguments[0].toTensor());
  stack->push_back(arguments[1]);
}

// An accelerator's convolution is `convolution_overrideable`, which has no kernel anywhere.
inline void convolve(const char* name, Stack* stack) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
}

// The operator of accelerators has no `bias_sizes`, which follows the three tensors.
inline void convolve_backward(Stack* stack) {
  const auto grad = (stack->end() - 10)->toTensor();
  stack->insert(stack->end() - 7, c10::List<int64_t>({grad.size(1)}));
  convolve("aten::convolution_backward", stack);
}

inline void run(const c10::OperatorHandle& op, const std::string& name, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  if (is_copy(name)) return copy(stack);
  if (name == "aten::convolution_overrideable") return convolve("aten::convolution", stack);
  if (name == "aten::convolution_backward_overrideable") return convolve_backward(stack);
  try {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    for (const char* words : {"out of bounds", "index out of range in self"})
      if (text.find(words) != std::string::npos) is_lost = true;
    throw;
  }
}

inline void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  // An operator of another namespace that has a kernel for the CPU alone must not run here.
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, "Could not run '", c10::toString(schema.operator_name()),
                              "' with arguments from the 'second' backend: it has no kernel for this device");
  TORCH_CHECK(!is_lost, "second device: device-side assert triggered");
  counts.add(name);
  HostCall call;
  std::optional<at::Generator> generator;
  for (size_t at = stack->size() - schema.arguments().size(); at < stack->size(); ++at) take((*stack)[at], name, call, generator);
  TORCH_CHECK(!call.has_cpu_tensor, "Expected all tensors to be on the same device, but found at least two devices, second:0 and cpu! (",
              c10::toString(schema.operator_name()), ")");
  {
    std::optional<Lent> lent;
    if (generator || op.hasTag(at::Tag::nondeterministic_seeded)) lent.emplace(generator ? *generator : default_generator());
    run(op, name, stack);
  }
  call.write_back();
  for (size_t at = stack->size() - schema.returns().size(); at < stack->size(); ++at) give((*stack)[at], call);
}

}  // namespace second_device
