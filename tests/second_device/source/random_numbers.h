// Random numbers of the second device: a generator whose state the CPU's generator does not share.
//
// Kernels of the CPU draw from a generator of the CPU, and some (`native_dropout`) always from the default one. So the
// default generator of the CPU is lent the state of the device's generator for the length of a kernel. Another thread
// that draws on the CPU meanwhile draws from the lent state: tests of random numbers use one thread.
#pragma once
#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace second_device {

constexpr uint64_t SALT = 0x5EC04D;  // one seed gives other numbers here than on the CPU

class Generator final : public at::CPUGeneratorImpl {
 public:
  Generator() {
    device_ = DEVICE;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
    set_current_seed(c10::default_rng_seed_val);
  }
  void set_current_seed(uint64_t seed) override { CPUGeneratorImpl::set_current_seed(seed ^ SALT); }
  uint64_t current_seed() const override { return CPUGeneratorImpl::current_seed() ^ SALT; }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->set_state(*get_state());
    return copy;
  }
};

inline const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<Generator>();
  return generator;
}

// While one lives, the CPU's default generator draws the numbers of `generator`.
class Lent {
 public:
  explicit Lent(const at::Generator& generator) : generator_(generator) { swap(); }
  ~Lent() { swap(); }
  Lent(const Lent&) = delete;

 private:
  void swap() {
    auto& ours = *static_cast<at::CPUGeneratorImpl*>(generator_.unsafeGetGeneratorImpl());
    auto& cpus = *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
    const auto engine = ours.engine();
    const auto single = ours.next_float_normal_sample();
    const auto twofold = ours.next_double_normal_sample();
    ours.set_engine(cpus.engine());
    ours.set_next_float_normal_sample(cpus.next_float_normal_sample());
    ours.set_next_double_normal_sample(cpus.next_double_normal_sample());
    cpus.set_engine(engine);
    cpus.set_next_float_normal_sample(single);
    cpus.set_next_double_normal_sample(twofold);
  }

  inline static std::recursive_mutex one_at_a_time;
  std::lock_guard<std::recursive_mutex> lock_{one_at_a_time};
  at::Generator generator_;
};

}  // namespace second_device
