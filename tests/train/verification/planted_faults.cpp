// Plants faults of the planner, the compiler, kernels and ranks into a verification that must find them.
#include "tests/train/verification/planted_faults.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace trainctl {
namespace {

using Overrides = std::vector<std::string>;
using Programs = std::vector<Program>;

const Overrides kTwoRanks = {"launch.ranks=2", "parallel.mode=data_parallel"};
const Overrides kFourRanks = {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
                              "parallel.strategies={layer1: [[2, 1], [2, 1]], layer2: [[2, 2], [1, 2]]}"};
const Overrides kPipeline = {"launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2",
                             "parallel.micro_batches=2", "parallel.stage_config={layer2: 1}"};
const Overrides kMicroBatches = {"launch.ranks=2", "parallel.mode=data_parallel", "parallel.micro_batches=2"};
const Overrides kMomentum = {"launch.ranks=2", "parallel.mode=data_parallel",
                             "optimizer={type: sgd, learning_rate: 0.01, momentum: 0.9}",
                             "parallel.optimizer_shard={level: 1, min_kb: 0}"};
const Overrides kClipped = {"launch.ranks=2", "parallel.mode=data_parallel",
                            "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, clip_norm: 0.1}",
                            "parallel.optimizer_shard={level: 2, min_kb: 0}"};

const Overrides kAdam = {"launch.ranks=2", "parallel.mode=data_parallel",
                         "optimizer={type: adamw, learning_rate: 0.01, weight_decay: 0.1, clip_norm: 0.5}"};

/// The position of the first instruction for which a condition holds.
template <typename Condition>
size_t find_instruction(const Program& program, const Condition& holds) {
  const auto found = std::find_if(program.instructions.begin(), program.instructions.end(), holds);
  if (found == program.instructions.end()) throw std::logic_error("there is no such instruction");
  return static_cast<size_t>(found - program.instructions.begin());
}

size_t find_named(const Program& program, std::string_view name) {
  return find_instruction(program, [&](const Instruction& code) { return code.name == name; });
}

void insert_after(Program& program, size_t at, Instruction added) {
  const int place = static_cast<int>(at) + 1;
  for (Instruction& code : program.instructions)
    for (int& wait : code.waits)
      if (wait >= place) ++wait;
  program.instructions.insert(program.instructions.begin() + place, std::move(added));
  if (!program.live.empty()) program.live.insert(program.live.begin() + place, program.live[at]);
}

void remove_instruction(Program& program, size_t at) {
  const int place = static_cast<int>(at);
  const std::vector<int> waits = program.instructions[at].waits;
  // The next instruction of the same stream must now wait for the inputs for which the removed instruction waited.
  const Stream stream = program.instructions[at].stream;
  for (size_t next = at + 1; next < program.instructions.size(); ++next)
    if (program.instructions[next].stream == stream) {
      program.instructions[next].waits.push_back(place);
      break;
    }
  for (Instruction& code : program.instructions) {
    const bool waited = std::erase(code.waits, place) > 0;
    if (waited) code.waits.insert(code.waits.end(), waits.begin(), waits.end());
    for (int& wait : code.waits)
      if (wait > place) --wait;
  }
  program.instructions.erase(program.instructions.begin() + place);
  if (!program.live.empty()) program.live.erase(program.live.begin() + place);
}

/// Multiplies the first output of an instruction by `factor`.
void scale_output(Program& program, size_t at, double factor) {
  const Instruction& before = program.instructions[at];
  Instruction scale;
  scale.name = before.name + ".scaled";
  scale.op = "scale";
  scale.attrs.set("factor", factor);
  scale.inputs = scale.outputs = {before.outputs.at(0)};
  scale.outputs[0].accumulate = false;
  scale.phase = before.phase;
  scale.micro_batch = before.micro_batch;
  scale.chunk = before.chunk;
  scale.stream = Stream::compute;
  if (before.stream != Stream::compute) scale.waits = {static_cast<int>(at)};
  insert_after(program, at, std::move(scale));
  // Instructions that read the result must wait for the instruction that has changed it.
  for (size_t i = at + 2; i < program.instructions.size(); ++i) {
    std::vector<int>& waits = program.instructions[i].waits;
    if (std::find(waits.begin(), waits.end(), static_cast<int>(at)) != waits.end())
      waits.push_back(static_cast<int>(at) + 1);
  }
}

std::function<void(Programs&)> scaled(std::string name, double factor) {
  return [name = std::move(name), factor](Programs& programs) {
    for (Program& program : programs) {
      const auto is_named = [&](const Instruction& code) { return code.name == name; };
      if (std::none_of(program.instructions.begin(), program.instructions.end(), is_named)) continue;
      scale_output(program, find_named(program, name), factor);
    }
  };
}

std::function<void(Programs&)> without(Purpose purpose) {
  return [purpose](Programs& programs) {
    for (Program& program : programs)
      remove_instruction(program, find_instruction(program, [&](const Instruction& code) {
                           return code.opcode == Opcode::collective && code.purpose == purpose;
                         }));
  };
}

Node& node_of(Graph& graph, std::string_view name) {
  const auto found =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.name == name; });
  if (found == graph.nodes.end()) throw std::logic_error("there is no such node");
  return *found;
}

/// Gives another value of an attribute to the kernels that update parameters.
std::function<void(Programs&)> updates_with(const char* attr, double value, int only_rank = -1) {
  return [=](Programs& programs) {
    for (Program& program : programs) {
      if (only_rank >= 0 && program.rank != only_rank) continue;
      for (Instruction& code : program.instructions)
        if (is_update(code)) code.attrs.set(attr, value);
    }
  };
}

/// Gives another limit to the kernels that clip the gradient of each parameter.
void clips_to_another_norm(Programs& programs) {
  for (Program& program : programs)
    for (Instruction& code : program.instructions)
      if (code.op == "clip_parameters") code.attrs.set("norm", 0.02004);
}

/// Settings of an optimizer, and an attribute of its kernel with another value.
struct WrongSetting {
  const char* optimizer;
  const char* fields;
  const char* attr;
  double value;
};

const std::vector<WrongSetting> kWrongSettings = {
    {"nadam", "learning_rate: 0.01", "beta1", 0.91},
    {"adagrad", "learning_rate: 0.01", "eps", 0.002},
    {"rmsprop", "learning_rate: 0.01, momentum: 0.5, centered: true", "alpha", 0.991},
    {"lion", "learning_rate: 0.01, weight_decay: 0.1", "weight_decay", 0.2},
    {"adafactor", "learning_rate: 0.05, weight_decay: 0.1", "max_update_rms", 0.9},
    {"lamb", "learning_rate: 0.01, weight_decay: 0.1", "weight_decay", 0.2},
    {"lars", "learning_rate: 1, weight_decay: 0.1", "trust_coefficient", 0.00101},
    {"schedule_free_adamw", "learning_rate: 0.01", "beta1", 0.91},
    {"muon", "learning_rate: 0.01, weight_decay: 0.1", "momentum", 0.9}};

void labels_of_the_first_micro_batch(Programs& programs) {
  Program& program = programs.at(1);
  std::vector<size_t> places;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].name == "load label") places.push_back(i);
  // Lets both micro-batches read the labels of the first one.
  program.instructions.at(places.at(1)).micro_batch = program.instructions.at(places.at(0)).micro_batch;
}

void same_samples_on_both_ranks(Programs& programs) {
  for (Instruction& code : programs.at(1).instructions)
    if (code.opcode == Opcode::load) code.outputs[0].global_offset[0] = 0;
}

void samples_off_by_one(Programs& programs) {
  for (Instruction& code : programs.at(1).instructions)
    if (code.name == "load data") code.outputs[0].global_offset[0] -= 1;
}

void weight_shard_off_by_one(Programs& programs) {
  for (Program& program : programs)
    for (Variable& variable : program.variables)
      if (variable.name == "layer1.weight" && variable.offset[0] > 0) variable.offset[0] -= 1;
}

void gathered_in_another_order(Programs& programs) {
  for (Program& program : programs)
    for (const Bucket& bucket : program.buckets) {
      if (bucket.shard_group < 0) continue;
      std::vector<int>& ranks = program.groups[static_cast<size_t>(bucket.shard_group)];
      std::reverse(ranks.begin(), ranks.end());
      return;
    }
}

void sums_loss_twice(Programs& programs) {
  for (Program& program : programs) {
    const size_t at = find_instruction(program, [](const Instruction& code) {
      return code.opcode == Opcode::collective && code.purpose == Purpose::loss;
    });
    Instruction again = program.instructions[at];
    again.waits = {static_cast<int>(at)};
    insert_after(program, at, std::move(again));
  }
}

/// The weights stay correct, but a rank sends more than it needs to.
void gathers_weights_twice(Programs& programs) {
  for (Program& program : programs) {
    const size_t at = find_instruction(program, [](const Instruction& code) {
      return code.opcode == Opcode::collective && code.collective == Collective::all_gather;
    });
    Instruction again = program.instructions[at];
    again.waits.push_back(static_cast<int>(at));
    insert_after(program, at, std::move(again));
  }
}

void sends_gradients_of_other_weights(Programs& programs) {
  Program& program = programs.at(0);
  Instruction& code = program.instructions[find_instruction(program, [](const Instruction& each) {
    return each.opcode == Opcode::collective && each.purpose == Purpose::gradient;
  })];
  code.inputs[0].offset = code.outputs[0].offset = program.buckets.at(0).weights_offset;
}

/// Gives rank 1 the dropout masks of the first rows of the batch, which belong to rank 0.
void masks_of_the_first_rows(Programs& programs) {
  bool is_planted = false;
  for (Instruction& code : programs.at(1).instructions)
    if (code.op == "dropout" && !code.outputs.empty() && !code.outputs[0].global_offset.empty()) {
      for (std::vector<Operand>* operands : {&code.inputs, &code.outputs})
        for (Operand& operand : *operands)
          if (!operand.global_offset.empty()) operand.global_offset[0] = 0;
      is_planted = true;
    }
  if (!is_planted) throw std::logic_error("there is no dropout");
}

/// Lets the gradients of the last micro-batch replace those of the other micro-batches, instead of being added.
void keeps_the_last_micro_batch(Programs& programs) {
  for (Program& program : programs)
    for (Instruction& code : program.instructions)
      if (code.name == "layer1.matmul.grad_weight")
        for (Operand& output : code.outputs) output.accumulate = false;
}

void change_weight(const Program& program, Executor& executor, const std::function<void(float&)>& change) {
  const Bucket& bucket = program.buckets.at(0);
  float value = 0;
  executor.read(bucket.weights_offset + 400, &value, sizeof value);
  change(value);
  executor.write(bucket.weights_offset + 400, &value, sizeof value);
}

}  // namespace

std::vector<FaultCase> fault_cases() {
  std::vector<FaultCase> cases;
  const auto add = [&](std::string name, const char* job, const Overrides& plan, PlantedFault fault,
                       std::vector<std::string> found_by) {
    cases.push_back({std::move(name), job, plan, std::move(fault), std::move(found_by)});
  };
  const auto in_rules = [](std::function<void(Graph&)> change) { return PlantedFault{.in_rules = std::move(change)}; };
  const auto in_programs = [](std::function<void(Programs&)> change) {
    return PlantedFault{.in_programs = std::move(change)};
  };
  // The fault is in the kernel itself, so the reference has it too.
  const auto in_kernel = [](std::function<void(Programs&)> change) {
    return PlantedFault{.in_programs = change, .in_reference = change};
  };
  // Faults of sharding rules.
  add("a wrong letter in the rule of a product: its weight is read transposed", "mlp", kFourRanks,
      in_rules([](Graph& graph) {
        Rule& rule = node_of(graph, "layer2.matmul").rule;
        std::swap(rule.inputs.at(1).at(0), rule.inputs.at(1).at(1));
      }),
      {"gradients", "proof", "run"});
  add("a wrong letter in the rule of a gradient: it is written transposed", "mlp", kFourRanks,
      in_rules([](Graph& graph) {
        Rule& rule = node_of(graph, "layer2.matmul.grad_weight").rule;
        std::swap(rule.outputs.at(0).at(0), rule.outputs.at(0).at(1));
      }),
      {"gradients", "proof", "run"});
  add("a gradient counted twice where a table is tied", "gpt", kTwoRanks, in_rules([](Graph& graph) {
        for (Update& update : graph.updates)
          if (update.gradients.size() == 2) update.gradients.push_back(update.gradients[0]);
      }),
      {"gradients"});
  add("a gradient left out where a table is tied", "gpt", kTwoRanks, in_rules([](Graph& graph) {
        for (Update& update : graph.updates)
          if (update.gradients.size() == 2) update.gradients.pop_back();
      }),
      {"gradients"});
  // Faults of programs.
  add("a missing all_reduce of gradients", "mlp", kTwoRanks, in_programs(without(Purpose::gradient)), {"proof"});
  add("a missing all_reduce of activations", "mlp", kFourRanks, in_programs(without(Purpose::redistribute)),
      {"losses"});
  add("a missing sum of the gradients' norm", "mlp", kClipped, in_programs(without(Purpose::clip)),
      {"weights", "communication"});
  add("missing sums of batch_norm's statistics", "batch_norm", kTwoRanks, in_programs([](Programs& programs) {
        for (Program& program : programs)
          remove_instruction(program, find_instruction(program, [](const Instruction& code) {
                               return code.opcode == Opcode::collective && code.phase == Phase::forward &&
                                      code.name.find("bn1") != std::string::npos;
                             }));
      }),
      {"losses", "proof", "run"});
  add("a loss that is summed twice", "mlp", kTwoRanks, in_programs(sums_loss_twice), {"losses"});
  add("weights that are gathered twice", "mlp", kMomentum, in_programs(gathers_weights_twice),
      {"communication", "proof"});
  add("weights sent in the place of gradients by one rank", "mlp", kTwoRanks,
      in_programs(sends_gradients_of_other_weights), {"gradients", "proof"});
  add("shards that are gathered in another order", "mlp", kMomentum, in_programs(gathered_in_another_order),
      {"weights", "proof", "communication"});
  add("a shard of a weight that begins one row too early", "mlp", kFourRanks, in_programs(weight_shard_off_by_one),
      {"losses"});
  add("samples of a rank that begin one too early", "mlp", kTwoRanks, in_programs(samples_off_by_one), {"losses"});
  add("two ranks that read the same samples", "mlp", kTwoRanks, in_programs(same_samples_on_both_ranks), {"losses"});
  add("labels of another micro-batch", "mlp", kPipeline, in_programs(labels_of_the_first_micro_batch),
      {"losses", "proof"});
  add("one rank that updates with another momentum", "mlp", kMomentum, in_programs(updates_with("momentum", 0.8, 1)),
      {"weights"});
  add("updates that forget the momentum", "mlp", kMomentum, in_programs(updates_with("momentum", 0.0)), {"weights"});
  add("a metric that counts every label twice", "classifier", kTwoRanks, in_programs([](Programs& programs) {
        for (Program& program : programs)
          for (ReportedMetric& metric : program.metrics) metric.scale *= 2;
      }),
      {"losses"});
  add("masks of dropout of other samples", "classifier", kTwoRanks, in_programs(masks_of_the_first_rows), {"losses"});
  add("gradients of the last micro-batch alone", "mlp", kMicroBatches, in_programs(keeps_the_last_micro_batch),
      {"gradients", "proof"});
  // Faults of kernels.
  add("a kernel of the plan that is off by 0.1 %", "mlp", kFourRanks, in_programs(scaled("layer2.matmul", 1.001)),
      {"gradients"});
  add("a gradient's kernel of the plan that is off by 0.1 %", "mlp", kPipeline,
      in_programs(scaled("relu2.grad_in0", 1.001)), {"gradients"});
  add("a forward kernel that is off by 0.1 % everywhere", "gpt", kTwoRanks, in_kernel(scaled("h.0.sum1", 1.001)),
      {"slope"});
  add("a backward kernel that is off by 0.1 % everywhere", "gpt", kTwoRanks,
      in_kernel(scaled("h.1.act.grad_in0", 1.001)), {"slope"});
  add("an update kernel with a rate that is off by 0.1 % everywhere", "mlp", kMomentum,
      in_kernel(updates_with("learning_rate_scale", 1.001)), {"update"});
  add("an update kernel that forgets the momentum everywhere", "mlp", kMomentum,
      in_kernel(updates_with("momentum", 0.01)), {"update"});
  add("a first moment with another decay everywhere", "gpt", kAdam, in_kernel(updates_with("beta1", 0.91)), {"update"});
  add("a weight decay that is twice as large everywhere", "gpt", kAdam, in_kernel(updates_with("weight_decay", 0.2)),
      {"update"});
  add("a limit of the gradients' norm that is off by 0.2 % everywhere", "gpt", kAdam,
      in_kernel(updates_with("clip_norm", 0.501)), {"update"});
  add("a limit of each gradient's norm that is off by 0.2 % everywhere", "mlp",
      {"launch.ranks=2", "parallel.mode=data_parallel",
       "optimizer={type: adamw, learning_rate: 0.01, clip_parameter_norm: 0.02}"},
      in_kernel(clips_to_another_norm), {"update"});
  for (const WrongSetting& wrong : kWrongSettings) {
    const Overrides plan = {"launch.ranks=2", "parallel.mode=data_parallel",
                            std::string("optimizer={type: ") + wrong.optimizer + ", " + wrong.fields + "}"};
    add(std::string("an update kernel of ") + wrong.optimizer + " with another " + wrong.attr + " everywhere", "mlp",
        plan, in_kernel(updates_with(wrong.attr, wrong.value)), {"update"});
    add(std::string("an update kernel of ") + wrong.optimizer + " with a rate that is off by 0.1 % everywhere", "mlp",
        plan, in_kernel(updates_with("learning_rate_scale", 1.001)), {"update"});
  }
  // Faults of memory and hardware.
  add("a rank that needs more memory than planned", "mlp", kTwoRanks, in_programs([](Programs& programs) {
        programs.at(1).arena_bytes += 4096;
        programs.at(1).memory.buffers += 4096;
      }),
      {"memory"});
  add("a bit that flips in a weight of one rank", "mlp", kTwoRanks,
      PlantedFault{.in_state =
                       [](int, const Program& program, int64_t step, Executor& executor) {
                         if (program.rank == 1 && step == 2)
                           change_weight(program, executor, [](float& w) { w += w * 1e-6F; });
                       }},
      {"weights"});
  add("a second run with another last bit", "mlp", kTwoRanks,
      PlantedFault{.in_state =
                       [](int run, const Program& program, int64_t step, Executor& executor) {
                         if (run == 1 && step == 2)
                           change_weight(program, executor, [](float& w) { w += w * 1.2e-7F; });
                       }},
      {"repeat"});
  add("saves that lack a part of a weight", "mlp", kTwoRanks, in_programs([](Programs& programs) {
        for (Program& program : programs)
          for (Variable& variable : program.variables)
            if (variable.name == "layer2.weight" && variable.own_elements > 0) variable.own_elements -= 1;
      }),
      {"run", "resume"});
  return cases;
}

}  // namespace trainctl
