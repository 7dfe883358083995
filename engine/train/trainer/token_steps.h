// Runs the programs of text generation on all ranks: rank 0 orders each step and has the logits of all texts after it.
//
//   rank 0   order (tokens, first positions) to all | step | logits of all ranks | next tokens | order ..
//   others   order                                  | step | logits to rank 0    |             | order ..
//
// Orders and logits are messages between the memories of hosts, separate from the communication of the programs.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/executor.h"
#include "engine/train/trainer/printed_tensors.h"

namespace trainctl {

/// Routes of the messages of `processes` ranks.
std::vector<Route> routes_of_generation(int processes);

class TokenSteps {
 public:
  using MakeExecutor = std::function<std::unique_ptr<Executor>(const Program& program, const ExecutorOptions& options)>;

  /// All arguments must outlive it; the job has a generation. `make` makes an executor; it gets `options` with the
  /// other members set.
  TokenSteps(const PlannedJob& job, const Program& decode, const Program& prefill, Communicator& comm,
             ExecutorOptions options, const MakeExecutor& make);

  /// The executor through which the weights are loaded.
  Executor& executor() { return *decode_.executor; }
  int64_t rows() const { return job_.generation->size.rows; }
  int64_t prefill_tokens() const { return job_.generation->prefill_tokens; }
  /// Host threads for converting logits and choosing tokens.
  int threads() const { return threads_; }
  /// The step that ranks show as theirs while they generate, from 0.
  void set_step(uint32_t step) { step_ = step; }

  // Functions of rank 0. `starts` has, for each row, the position of its first token.
  /// `tokens`: [rows, prefill_tokens].
  void prefill(std::span<const int32_t> tokens, std::span<const int32_t> starts);
  /// `tokens`: one per row. Returns the logits of the next tokens, [rows, vocabulary].
  std::span<float> decode(std::span<const int32_t> tokens, std::span<const int32_t> starts);
  /// Ends the loops of the other ranks.
  void finish();

  /// Called on the other ranks: runs the steps that rank 0 orders, until rank 0 calls finish().
  void follow();

 private:
  struct Part {
    int64_t row = 0, rows = 0, column = 0, columns = 0;  ///< no rows: the rank has no logits
    int64_t size() const { return rows * columns; }
  };
  struct Steps {
    const Program* program = nullptr;
    std::unique_ptr<Executor> executor;
    HostBlock inputs;
  };

  void order(int64_t tokens_of_row, std::span<const int32_t> tokens, std::span<const int32_t> starts);
  void run(Steps& steps, int64_t tokens_of_row, std::span<const int32_t> tokens, std::span<const int32_t> starts);
  void take(const Operand& printed, const void* data);
  Part own_part() const;
  void exchange_parts();
  void place(const Part& part, const std::vector<float>& values);

  const PlannedJob& job_;
  Communicator& comm_;
  const std::string tokens_name_;
  std::unique_ptr<PrintedTensors> printed_;
  Steps decode_, prefill_;
  const int threads_;
  std::vector<Part> parts_;        ///< by rank; other ranks have only their own
  std::vector<float> own_values_;  ///< values of this rank's part; one rank writes logits_
  std::vector<float> logits_, received_;
  std::vector<int32_t> message_;
  std::vector<int64_t> sent_;  ///< by rank: the number of the last order
  uint32_t step_ = 0;
};

}  // namespace trainctl
