// The executor of a worker on a device whose servers are on the host's cores.
#include "engine/runtime/device_worker.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/round_up.h"

namespace trainctl::servers {
namespace {

/// The communicator as the device's executor sees it: servers have no device.
class Workers final : public Communicator {
 public:
  Workers(Communicator& comm, int workers) : comm_(comm), workers_(workers) {}

  int rank() const override { return comm_.rank(); }
  int num_ranks() const override { return workers_; }
  int open_group(const std::vector<int>& ranks) override { return comm_.open_group(ranks); }
  void register_arena(void* base, int64_t bytes) override { comm_.register_arena(base, bytes); }
  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    comm_.all_reduce(group, in, out, count, dtype);
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    comm_.all_gather(group, in, out, count, dtype);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    comm_.reduce_scatter(group, in, out, count, dtype);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    comm_.all_to_all(group, in, out, count, dtype);
  }
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    comm_.all_to_all_rows(group, in, out, count, dtype, rows);
  }
  void exchanged_tokens(int64_t bytes) override { comm_.exchanged_tokens(bytes); }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    comm_.broadcast(group, in, out, count, dtype, root);
  }
  void barrier(int group) override { comm_.barrier(group); }
  int64_t send(int peer, const void* data, int64_t bytes) override { return comm_.send(peer, data, bytes); }
  void wait_send(int peer, int64_t sequence) override { comm_.wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override { comm_.recv(peer, data, bytes); }
  void set_position(RankPosition position) override { comm_.set_position(position); }
  RankPosition position_of(int rank) const override { return comm_.position_of(rank); }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    return comm_.hopeless(call, missing, late);
  }

 private:
  Communicator& comm_;
  const int workers_;
};

bool has_server(const std::vector<int>& ranks, int workers) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return rank >= workers; });
}

bool involves_server(const Program& program, const Instruction& i, int workers) {
  if (i.opcode == Opcode::send || i.opcode == Opcode::recv) return i.peer >= workers;
  return i.opcode == Opcode::collective && has_server(program.groups[static_cast<size_t>(i.group)], workers);
}

/// A range that the host and the device exchange.
struct Range {
  int64_t offset = 0, bytes = 0;
};

class DeviceWorker final : public Executor {
 public:
  /// `inner` runs without_servers(program, workers), which is `on_device`.
  DeviceWorker(const Program& program, std::unique_ptr<Program> on_device, std::shared_ptr<Workers> among,
               Communicator& comm, int workers, const ExecutorOptions& options, std::span<std::byte> mirror,
               std::unique_ptr<Executor> inner)
      : program_(program),
        on_device_(std::move(on_device)),
        among_(std::move(among)),
        comm_(comm),
        workers_(workers),
        on_communication_(options.on_communication),
        mirror_(mirror),
        inner_(std::move(inner)) {
    // Indexed by the instructions of the device's program; loaders use those of the whole program.
    const InputLayout& of_device = inner_->inputs();
    inputs_.bytes = of_device.bytes;
    size_t kept = 0;
    for (const Instruction& i : program.instructions) {
      const bool is_kept = !involves_server(program, i, workers);
      inputs_.offsets.push_back(is_kept ? of_device.offsets[kept] : -1);
      inputs_.rows.push_back(is_kept ? of_device.rows[kept] : 0);
      inputs_.as_bytes.push_back(is_kept && of_device.as_bytes[kept]);
      if (is_kept) {
        ++kept;
        continue;
      }
      if (i.opcode == Opcode::recv) pulls_.push_back(&i);
      if (i.opcode == Opcode::send) pushes_.push_back(&i);
      if (i.opcode != Opcode::collective) continue;
      const bool is_loss = i.collective == Collective::all_reduce && i.inputs[0].offset == program.loss_offset;
      check(is_loss, "workers have no collective with servers but the sum of the loss");
      losses_.push_back({&i, comm.open_group(program.groups[static_cast<size_t>(i.group)])});
    }
    for (const Bucket& b : program.buckets) {
      if (!b.table) continue;
      const int64_t bytes = b.elements * byte_size(DType::f32);
      windows_.push_back({b.weights_offset, bytes});
      if (b.gradients_offset >= 0) results_.push_back({b.gradients_offset, bytes});
    }
    for (const Instruction& i : program.instructions)
      for (const Operand& out : i.outputs)
        if (!windows_.empty() && out.tensor == "clip_norm" && i.opcode != Opcode::recv)
          results_.push_back({out.offset, out.bytes()});
    for (const std::span<std::byte> memory : exchanged()) inner_->use_often(memory);
  }

  const InputLayout& inputs() const override { return inputs_; }
  int max_in_flight() const override { return 1; }
  HostBlock allocate_inputs(int64_t bytes) override { return inner_->allocate_inputs(bytes); }
  void read(int64_t offset, void* to, int64_t bytes) override { inner_->read(offset, to, bytes); }
  void write(int64_t offset, const void* from, int64_t bytes) override { inner_->write(offset, from, bytes); }
  void prepare_copy(const std::vector<StateCopy>& copies, std::byte* to) override { inner_->prepare_copy(copies, to); }
  void begin_copy() override { inner_->begin_copy(); }
  bool is_copied(bool wait) override { return inner_->is_copied(wait); }

  void start_step(const std::byte* inputs, const StepScalars& scalars) override {
    step_ = scalars.step + 1;
    for (const Range& window : windows_) to_device(window);
    for (const Instruction* pull : pulls_) {
      const Range weights = range_of(pull->outputs[0]);
      run_exchange(*pull, [&] { comm_.recv(pull->peer, mirror_.data() + weights.offset, weights.bytes); });
      to_device(weights);  // this copy runs while the next message arrives
    }
    inner_->start_step(inputs, scalars);
  }

  float finish_step(std::span<float> metrics) override {
    std::vector<float> reported(1 + program_.metrics.size());
    reported[0] = inner_->finish_step(std::span(reported).subspan(1));
    // Gradients that have arrived are sent while the others are still on their way.
    for (const Instruction* push : pushes_) begin_from_device(range_of(push->inputs[0]));
    for (const Range& result : results_) begin_from_device(result);
    for (const Instruction* push : pushes_) {
      inner_->wait_read();
      const Range gradients = range_of(push->inputs[0]);
      run_exchange(*push, [&] {
        sent_.emplace_back(push->peer, comm_.send(push->peer, mirror_.data() + gradients.offset, gradients.bytes));
      });
    }
    for (size_t i = 0; i < results_.size(); ++i) inner_->wait_read();
    // The next step overwrites what was sent.
    for (const auto& [peer, sequence] : sent_) comm_.wait_send(peer, sequence);
    sent_.clear();
    for (const Loss& loss : losses_)
      run_exchange(*loss.instruction, [&] {
        comm_.all_reduce(loss.group, reported.data(), reported.data(), static_cast<int64_t>(reported.size()),
                         DType::f32);
      });
    if (!metrics.empty()) std::copy(reported.begin() + 1, reported.end(), metrics.begin());
    return reported[0];
  }

  std::unique_ptr<Executor> beside(const Program& program, const ExecutorOptions& options) override {
    auto on_device = std::make_unique<Program>(without_servers(program, workers_));
    std::unique_ptr<Executor> inner = inner_->beside(*on_device, options);
    return std::make_unique<DeviceWorker>(program, std::move(on_device), among_, comm_, workers_, options, mirror_,
                                          std::move(inner));
  }

 private:
  static Range range_of(const Operand& operand) { return {operand.offset, operand.bytes()}; }
  void to_device(const Range& range) { inner_->begin_write(range.offset, mirror_.data() + range.offset, range.bytes); }
  void begin_from_device(const Range& range) {
    inner_->begin_read(range.offset, mirror_.data() + range.offset, range.bytes);
  }

  /// The pages of the mirror that are exchanged, in pieces that have none in common.
  std::vector<std::span<std::byte>> exchanged() const {
    constexpr int64_t kPage = 4096;
    const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mirror_.data()) % kPage);
    std::vector<Range> ranges = windows_;
    ranges.insert(ranges.end(), results_.begin(), results_.end());
    for (const Instruction* pull : pulls_) ranges.push_back(range_of(pull->outputs[0]));
    for (const Instruction* push : pushes_) ranges.push_back(range_of(push->inputs[0]));
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
    std::vector<std::span<std::byte>> pieces;
    int64_t begin = 0, end = 0;
    const auto add = [&] {
      if (end > begin) pieces.push_back(mirror_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    };
    for (const Range& range : ranges) {
      const int64_t first = std::max((range.offset + before) / kPage * kPage - before, int64_t{0});
      const int64_t last =
          std::min(round_up(range.offset + range.bytes + before, kPage) - before, static_cast<int64_t>(mirror_.size()));
      if (first > end) {
        add();
        begin = first;
      }
      end = std::max(end, last);
    }
    add();
    return pieces;
  }

  /// Runs an exchange, after telling peers and the launcher which one it is.
  template <class Exchange>
  void run_exchange(const Instruction& instruction, const Exchange& exchange) {
    if (on_communication_) on_communication_(instruction);
    comm_.set_position({step_, static_cast<int32_t>(&instruction - program_.instructions.data())});
    try {
      exchange();
    } catch (const CommError& error) {
      CommError named("rank " + std::to_string(program_.rank) + ": " + instruction.name + " at step " +
                      std::to_string(step_) + ": " + error.what());
      named.missing = error.missing;
      throw named;
    }
  }

  struct Loss {
    const Instruction* instruction;
    int group;
  };

  const Program& program_;
  const std::unique_ptr<Program> on_device_;  ///< outlives inner_, as does among_
  const std::shared_ptr<Workers> among_;
  Communicator& comm_;
  const int workers_;
  const std::function<void(const Instruction&)> on_communication_;
  const std::span<std::byte> mirror_;
  InputLayout inputs_;
  std::vector<const Instruction*> pulls_, pushes_;
  std::vector<Loss> losses_;
  /// Ranges of tables: those that go to the device before a step, and those that come back after it.
  std::vector<Range> windows_, results_;
  std::vector<std::pair<int, int64_t>> sent_;
  uint32_t step_ = 0;
  std::unique_ptr<Executor> inner_;
};

}  // namespace

Program without_servers(const Program& program, int workers) {
  Program kept = program;
  kept.instructions.clear();
  kept.live.clear();
  std::vector<int> groups(program.groups.size(), -1);
  kept.groups.clear();
  for (size_t g = 0; g < program.groups.size(); ++g) {
    if (has_server(program.groups[g], workers)) continue;
    groups[g] = static_cast<int>(kept.groups.size());
    kept.groups.push_back(program.groups[g]);
  }
  for (Bucket& b : kept.buckets) {
    if (b.reduce_group >= 0) b.reduce_group = groups[static_cast<size_t>(b.reduce_group)];
    if (b.shard_group >= 0) b.shard_group = groups[static_cast<size_t>(b.shard_group)];
  }
  // If an instruction waits for one that is left out, it waits instead for everything that the omitted one waits for.
  std::vector<std::vector<int>> stands_for;
  for (const Instruction& i : program.instructions) {
    std::vector<int> waits;
    for (const int wait : i.waits)
      for (const int other : stands_for[static_cast<size_t>(wait)])
        if (std::find(waits.begin(), waits.end(), other) == waits.end()) waits.push_back(other);
    std::sort(waits.begin(), waits.end());
    if (involves_server(program, i, workers)) {
      stands_for.push_back(std::move(waits));
      continue;
    }
    stands_for.push_back({static_cast<int>(kept.instructions.size())});
    kept.instructions.push_back(i);
    kept.instructions.back().waits = std::move(waits);
    if (i.opcode == Opcode::collective) kept.instructions.back().group = groups[static_cast<size_t>(i.group)];
  }
  return kept;
}

std::unique_ptr<Executor> make_device_worker(const Program& program, int workers, Communicator& comm,
                                             const ExecutorOptions& options, std::span<std::byte> mirror,
                                             const MakeExecutor& make) {
  check(static_cast<int64_t>(mirror.size()) >= program.arena_bytes, "a mirror has the arena's offsets");
  auto among = std::make_shared<Workers>(comm, workers);
  auto on_device = std::make_unique<Program>(without_servers(program, workers));
  ExecutorOptions of_device = options;
  of_device.in_flight = 1;
  std::unique_ptr<Executor> inner = make(*on_device, *among, of_device);
  return std::make_unique<DeviceWorker>(program, std::move(on_device), std::move(among), comm, workers, options, mirror,
                                        std::move(inner));
}

}  // namespace trainctl::servers
