// Runs a oneDNN primitive on operands in a format that may differ from the one it computes in. Kernels that one thread
// prepares run one at a time, so they share the memory of reordered operands and of scratchpads.
#include "engine/ops/cpu/onednn_cpu.h"

#include <algorithm>
#include <cstdlib>

#include "engine/base/error.h"

// A function of libgomp, which oneDNN uses; it sets the number for the calling thread.
extern "C" void omp_set_num_threads(int threads);

namespace trainctl::cpu {
namespace {

constexpr size_t kAlignment = 64;

/// The scratch memory of all kernels that this thread prepares. It grows while kernels are prepared, and its address
/// may change then, so each run looks the address up.
class SharedMemory {
 public:
  ~SharedMemory() { std::free(data_); }
  void reserve(size_t bytes) {
    if (bytes <= size_) return;
    std::free(data_);
    data_ = static_cast<char*>(std::aligned_alloc(kAlignment, bytes));
    check(data_ != nullptr, "out of memory for the scratch of oneDNN's kernels");
    size_ = bytes;
  }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

std::shared_ptr<SharedMemory> memory_of_this_thread() {
  static thread_local std::weak_ptr<SharedMemory> shared;
  std::shared_ptr<SharedMemory> memory = shared.lock();
  if (memory == nullptr) shared = memory = std::make_shared<SharedMemory>();
  return memory;
}

/// A primitive with its operands.
struct Execution {
  dnnl::primitive primitive;
  std::vector<dnnl_exec_arg_t> args;
};

}  // namespace

struct Steps::State {
  int threads = 1;
  dnnl::stream stream{engine()};
  std::shared_ptr<SharedMemory> shared = memory_of_this_thread();
  size_t used = 0;                                         ///< bytes used of the shared memory
  std::vector<std::pair<dnnl::memory, size_t>> in_shared;  ///< memory objects and their offsets in it
  std::vector<dnnl::memory> operands;                      ///< keeps them alive
  std::vector<Execution> before, after;
  Execution main;
  char* bound = nullptr;  ///< the shared memory that in_shared points into

  dnnl::memory at(void* data, const dnnl::memory::desc& desc) {
    operands.emplace_back(desc, engine(), data);
    return operands.back();
  }

  dnnl::memory in_scratch(const dnnl::memory::desc& desc) {
    dnnl::memory place(desc, engine(), DNNL_MEMORY_NONE);
    in_shared.emplace_back(place, used);
    used += (desc.get_size() + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }

  Execution reorder(const dnnl::memory& from, const dnnl::memory& to, bool accumulate) {
    dnnl::primitive_attr attr = own_scratchpad();
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const dnnl::reorder::primitive_desc made(engine(), from.get_desc(), engine(), to.get_desc(), attr);
    Execution step{dnnl::reorder(made), {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}}};
    add_scratchpad(step, made.scratchpad_desc());
    return step;
  }

  void add_scratchpad(Execution& step, const dnnl::memory::desc& desc) {
    if (desc.get_size() > 0) step.args.push_back({DNNL_ARG_SCRATCHPAD, in_scratch(desc).get()});
  }

  void run(const Execution& step) const {
    const dnnl_status_t status = dnnl_primitive_execute(step.primitive.get(), stream.get(),
                                                        static_cast<int>(step.args.size()), step.args.data());
    check(status == dnnl_success, "oneDNN could not run a kernel");
  }

  void bind() {
    if (bound == shared->data()) return;
    bound = shared->data();
    for (auto& [place, offset] : in_shared) place.set_data_handle(bound + offset);
  }

  void run_all() {
    omp_set_num_threads(threads);
    bind();
    for (const Execution& step : before) run(step);
    run(main);
    for (const Execution& step : after) run(step);
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::primitive_attr own_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

Steps::Steps(int threads) : state_(std::make_shared<State>()) {
  state_->threads = threads;
  omp_set_num_threads(threads);
}

void Steps::read(int arg, const void* data, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  dnnl::memory operand = state_->at(const_cast<void*>(data), plain);
  if (plain != wanted) {
    const dnnl::memory reordered = state_->in_scratch(wanted);
    state_->before.push_back(state_->reorder(operand, reordered, false));
    operand = reordered;
  }
  state_->main.args.push_back({arg, operand.get()});
}

void Steps::write(int arg, void* data, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted,
                  bool accumulate) {
  dnnl::memory operand = state_->at(data, plain);
  if (plain != wanted || accumulate) {
    const dnnl::memory computed = state_->in_scratch(wanted);
    state_->after.push_back(state_->reorder(computed, operand, accumulate));
    operand = computed;
  }
  state_->main.args.push_back({arg, operand.get()});
}

void Steps::finish(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad) {
  state_->main.primitive = primitive;
  state_->add_scratchpad(state_->main, scratchpad);
  state_->shared->reserve(state_->used);
}

CpuKernel Steps::kernel() const {
  return [state = state_] { state->run_all(); };
}

}  // namespace trainctl::cpu
