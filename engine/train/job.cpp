// See the header.
#include "engine/train/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/text.h"
#include "engine/compile/buckets.h"
#include "engine/compile/one_a_stage.h"
#include "engine/compile/verify_programs.h"
#include "engine/estimate/simulate.h"
#include "engine/model/evaluation.h"
#include "engine/plan/outdated.h"
#include "engine/plan/plan_memo.h"
#include "engine/runtime/copied_collectives.h"
#include "engine/runtime/workspace.h"
#include "engine/spec/fields.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/loader.h"
#include "engine/train/data/order.h"
#include "engine/train/data/sample_transforms.h"
#include "engine/train/head_pieces.h"
#include "engine/train/machine_file.h"
#include "engine/train/trainer.h"

namespace trainctl {
namespace {

/// Steps are counted in 32 bits.
void check_run(const JobSpec& spec, int64_t samples) {
  const int64_t per_epoch = steps_per_epoch(spec.dataset, samples), steps = total_steps(spec.train, per_epoch);
  if (steps <= static_cast<int64_t>(kMaxSteps)) return;
  const bool is_more = std::max(steps, capped_product(samples, spec.dataset.repeat)) == kCapped;
  // The largest factor is the one to blame.
  const int64_t epochs = spec.train.epochs, repeat = spec.dataset.repeat;
  const char* path = epochs >= per_epoch ? "train.epochs" : repeat > samples ? "dataset.repeat" : "dataset.samples";
  throw SpecError(
      {}, path,
      fmt::format("the run would have {}{} steps, {} per epoch; the limit is {}", is_more ? "more than " : "",
                  with_commas(steps), with_commas(per_epoch), with_commas(static_cast<int64_t>(kMaxSteps))),
      "set train.steps to stop earlier");
}

/// Each sample counts once, also where the last batch has to be filled up: then no result may depend on other rows, and
/// nothing but the loss may read a label that is not there.
void check_filled_batch(const PlannedJob& job, const PlannedEvaluation& evaluation) {
  if (evaluation.samples % job.spec.dataset.batch == 0) return;
  const std::string remedy =
      fmt::format("use a number of samples that is divisible by dataset.batch {}, or a batch that divides {}",
                  job.spec.dataset.batch, evaluation.samples);
  if (const LayerId layer = mixes_rows(evaluation.graph); layer >= 0)
    throw SpecError({}, "validation",
                    fmt::format("the last batch of {} samples must be padded, but {} computes over all rows of a "
                                "batch",
                                evaluation.samples, evaluation.graph.layers[static_cast<size_t>(layer)].name),
                    remedy);
  if (const LayerId layer = reads_label(evaluation.graph); layer >= 0)
    throw SpecError({}, "validation",
                    fmt::format("the last batch of {} samples must be padded with samples without labels, but {} "
                                "reads the label",
                                evaluation.samples, evaluation.graph.layers[static_cast<size_t>(layer)].name),
                    remedy);
}

/// "[28, 28, 1]", or "image [3, 224, 224] of f32, label [] of i32".
std::string in_words(const DataShapes& shapes) {
  if (shapes.fields.size() == 2 && shapes.fields[0].name == "data") return to_string(shapes.fields[0].shape);
  std::vector<std::string> fields;
  for (const DataField& field : shapes.fields)
    fields.push_back(fmt::format("{} {} of {}", field.name, to_string(field.shape), field.is_integer ? "i32" : "f32"));
  return join(fields);
}

PlannedEvaluation plan_validation(const PlannedJob& job) {
  PlannedEvaluation evaluation;
  evaluation.set = job.spec.validation_set();
  const DataHeader header = read_data_header(evaluation.set, job.spec.seed);
  if (header.shapes != job.shapes)
    throw SpecError({}, "validation.dataset",
                    fmt::format("the samples are {}, but those of the training set are {}", in_words(header.shapes),
                                in_words(job.shapes)),
                    "use dataset.transforms: {resize: [h, w]} for equal shapes");
  evaluation.samples = header.samples;
  evaluation.fields = header.fields;
  evaluation.host_bytes = header.bytes;
  evaluation.graph = evaluation_graph(job.graph);
  check_filled_batch(job, evaluation);
  return evaluation;
}

/// Returns the tables of tensors that come as bytes, if the device does not keep them: `kept` are the ones that it
/// keeps if it has the room.
std::vector<ByteTable> mapped_tables(const Program& program, const std::vector<SampleField>& fields,
                                     const std::vector<SampleTable>& kept) {
  std::vector<ByteTable> mapped = byte_tables(fields, program);
  std::erase_if(mapped, [&](const ByteTable& table) {
    const auto is_same = [&](const SampleTable& of) { return of.tensor == table.tensor; };
    return std::any_of(kept.begin(), kept.end(), is_same) || !loads_whole_samples(program, table);
  });
  return mapped;
}

/// If the device keeps `there`; `mapped` come as bytes, the rest as floats.
int64_t workspace_bytes(const Program& program, int in_flight, const std::vector<ByteTable>& mapped,
                        const std::vector<SampleTable>& there) {
  if (mapped.empty() && there.empty()) return workspace_of(program, in_flight).bytes();
  int64_t values = 0;
  for (const ByteTable& table : mapped) values += static_cast<int64_t>(table.values.size() * sizeof(float));
  return workspace_with(input_layout(program, there, mapped), program, in_flight).bytes() + values;
}

Program with_device_memory(const PlannedJob& job, Program program) {
  if (job.spec.launch.device != Device::cuda) return program;
  Memory& m = program.memory;
  m.copy_engines = copy_memory(program, job.plan.ranks).bytes;
  std::vector<SampleTable> tables;
  if (!has_random_transforms(job.spec.dataset.transforms))  // else samples come anew in each pass
    tables = sample_tables(job.shapes, job.samples, program);
  if (!small_enough_to_keep(tables)) tables.clear();
  std::erase_if(tables, [&](const SampleTable& table) { return !loads_whole_samples(program, table); });
  for (const SampleTable& table : tables) m.data_set += table.bytes();
  const std::vector<ByteTable> mapped = mapped_tables(program, job.fields, tables);
  const int in_flight = steps_in_flight(job.spec.train);
  m.workspace = workspace_bytes(program, in_flight, mapped, {});
  m.unsent = tables.empty() ? 0 : m.workspace - workspace_bytes(program, in_flight, mapped, tables);
  return program;
}

/// It runs one batch at a time, and keeps no data on the device.
Program with_evaluation_memory(const PlannedJob& job, Program program) {
  if (job.spec.launch.device != Device::cuda) return program;
  program.memory.workspace = workspace_bytes(program, 1, mapped_tables(program, job.validation->fields, {}), {});
  program.memory.copy_engines = copy_memory(program, job.plan.ranks).bytes;
  return program;
}

/// Servers save between updates; what workers keep of their own they do not.
void check_saves(const PlannedJob& job) {
  if (!job.plan.is_asynchronous() || !job.spec.train.saves_state()) return;
  for (const Tensor& tensor : job.graph.tensors)
    if (tensor.kind == TensorKind::state)
      throw SpecError(job.spec.position("train.checkpoint"), "train.checkpoint",
                      "each asynchronous worker has its own " + tensor.name + ", which checkpoints do not contain",
                      "set parallel.sync: true, or remove checkpoint");
}

/// The plan of a job in which everything is fixed.
void plan_graph(PlannedJob& job, PlanMemo& memo) {
  const std::vector<std::string> notes = leave_out_outdated(job.spec, job.graph);
  job.plan = make_plan(job.graph, job.spec, job.cost, memo);
  job.plan.notes.insert(job.plan.notes.begin(), notes.begin(), notes.end());
  for (ServedTable& table : job.tables) job.plan.tables.push_back(find_table(job.graph, table));
  check_saves(job);
  choose_head_pieces(job);
}

/// Memory limit of a rank, whatever its plan; 0: no limit is known.
int64_t memory_limit(const PlannedJob& job) {
  if (job.spec.parallel.max_memory > 0) return job.spec.parallel.max_memory;
  const Machine& machine = job.cost.machine();
  const bool may_send = job.spec.launch.ranks > 1;
  return machine.kind == DeviceKind::cuda
             ? static_cast<int64_t>((machine.memory - machine.taken(may_send, may_send)).value)
             : 0;
}

/// Plans, compiles and simulates jobs that are `job` with other plans, fewer blocks and other batches.
class Trials {
 public:
  explicit Trials(const PlannedJob& job) : job_(job) {}

  Trial of(JobSpec spec, TriedRanks ranks) {
    PlannedJob fixed;
    fixed.spec = std::move(spec);
    fixed.spec.parallel.max_memory = 0;  // the search compares; the head is made in pieces once a plan is chosen
    fixed.shapes = job_.shapes;
    fixed.samples = job_.samples;
    fixed.fields = job_.fields;
    fixed.cost = job_.cost;
    OfGraph& known = graphs_[key_of(fixed.spec)];
    known.memo.explains = ranks == TriedRanks::all;  // the chosen plan
    Trial trial;
    try {
      if (!known.graph) known.graph = build_graph(fixed.spec, fixed.shapes);
      fixed.graph = std::move(*known.graph);
      plan_graph(fixed, known.memo);
      std::vector<OtherBuckets>& others = known.others[key_but_buckets(fixed.spec.parallel, ranks)];
      const auto same = std::find_if(others.begin(), others.end(), [&](const OtherBuckets& other) {
        return has_same_buckets(fixed.graph, fixed.plan, other.bucket_bytes);
      });
      trial = same != others.end() ? same->trial : simulated(fixed, ranks);
      if (same == others.end()) {
        others.push_back({fixed.plan.bucket_bytes, trial});
        others.back().trial.compiled = nullptr;  // large
      }
    } catch (const SpecError& error) {
      trial.fault = error.diagnostics().front().message;
    }
    if (known.graph) *known.graph = std::move(fixed.graph);
    return trial;
  }

  /// A plan with another size of the largest bucket.
  struct OtherBuckets {
    int64_t bucket_bytes = 0;
    Trial trial;
  };
  /// Facts of this job's graph, which may have been tried.
  struct OfGraph {
    std::optional<Graph> graph;
    PlanMemo memo;
    std::map<std::string, std::vector<OtherBuckets>> others;  ///< plans that were tried, by all settings but that size
  };
  OfGraph take(const JobSpec& spec) {
    OfGraph known = std::move(graphs_[key_of(spec)]);
    known.memo.explains = true;
    return known;
  }

 private:
  /// All that a graph depends on and that a search changes.
  static std::string key_of(const JobSpec& spec) {
    std::string key = fmt::format("{} {}", spec.dataset.batch, spec.parallel.micro_batches);
    for (const LayerSpec& layer : spec.network) key.append(" ").append(layer.name);
    return key;
  }

  /// All else that a plan depends on and that a search changes.
  static std::string key_but_buckets(const ParallelSpec& parallel, TriedRanks ranks) {
    std::string key = fmt::format("{} {} {} {} {} {}", static_cast<int>(ranks), parallel.stages, parallel.chunks,
                                  static_cast<int>(parallel.schedule), parallel.optimizer_shard.level,
                                  parallel.optimizer_shard.within_host);
    for (const StageRule& rule : parallel.stage_config) key += fmt::format(" {}:{}", rule.pattern, rule.stage);
    for (const RecomputeRule& rule : parallel.recompute) key.append(" ").append(rule.pattern);
    for (const StrategySpec& strategy : parallel.strategies) {
      key.append(" ").append(strategy.pattern);
      for (const Ints& cuts : strategy.cuts) key += format_list(cuts);
    }
    return key;
  }

  /// True if nothing changes with this size of the largest bucket.
  static bool has_same_buckets(const Graph& graph, Plan plan, int64_t bucket_bytes) {
    const std::vector<BucketPlan> own = plan_buckets(graph, plan);
    plan.bucket_bytes = bucket_bytes;
    const std::vector<BucketPlan> others = plan_buckets(graph, plan);
    const auto has_same_parameters = [](const BucketPlan& a, const BucketPlan& b) {
      return std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(), b.parameters.end(),
                        [](const auto& one, const auto& other) { return one.tensor == other.tensor; });
    };
    return std::equal(own.begin(), own.end(), others.begin(), others.end(), has_same_parameters);
  }

  Trial simulated(PlannedJob& fixed, TriedRanks ranks) const {
    Trial trial;
    auto compiled = std::make_shared<CompiledTrial>();
    RankClasses& classes = compiled->classes;
    const bool all = ranks == TriedRanks::all;
    classes = all ? compile_unverified(fixed.graph, fixed.plan, fixed.spec, fixed.cost)
                  : compile_one_a_stage(fixed.graph, fixed.plan, fixed.spec, fixed.cost);
    for (Program& program : classes.programs) program = with_device_memory(fixed, std::move(program));
    const Simulation& step = compiled->step = simulate(classes, job_.cost.machine(), all);
    if (!step.ends) {
      trial.fault = "its stages would deadlock";
      return trial;
    }
    trial.seconds = step.step.value;
    for (const Program& program : classes.programs) trial.memory = std::max(trial.memory, program.memory.total());
    for (size_t p = 0; p < kParts; ++p) trial.parts.emplace_back(to_string(static_cast<Part>(p)), step.parts[p].value);
    for (Part part : {Part::gradients, Part::weights})
      trial.bucket_seconds += step.parts[static_cast<size_t>(part)].value;
    trial.of_all_ranks = all;
    if (all) {
      compiled->plan = fixed.plan;
      trial.compiled = std::move(compiled);
    }
    return trial;
  }

  const PlannedJob& job_;
  std::map<std::string, OfGraph> graphs_;
};

/// Fixes what auto_parallel leaves open. Returns what is known of the graph then.
Trials::OfGraph search_plan(PlannedJob& job) {
  ParallelSpec& parallel = job.spec.parallel;
  if (parallel.mode != ParallelMode::auto_parallel) return {};
  parallel.mode = ParallelMode::semi_auto_parallel;
  Trials trials(job);
  const TryPlan try_plan = [&trials](JobSpec spec, TriedRanks ranks) { return trials.of(std::move(spec), ranks); };
  // Cuts alone are not chosen for memory; whether they fit is said once all is planned.
  const int64_t memory = parallel.search.algorithm == SearchAlgorithm::sharding_propagation ? 0 : memory_limit(job);
  job.search = find_plan(job.spec, job.shapes, job.cost, memory, try_plan);
  job.spec = with_choice(std::move(job.spec), job.search->best().choice);
  return trials.take(job.spec);
}

/// The plan and the programs of the search's trial, if the plan that was found is exactly what it tried.
bool take_trial(PlannedJob& job) {
  if (!job.search || !job.tables.empty()) return false;
  Trial& trial = job.search->tried.front().trial;
  const std::shared_ptr<const CompiledTrial> compiled = std::move(trial.compiled);
  // With a limit that it does not fit, the head is made in pieces.
  if (!compiled || !trial.fits(job.spec.parallel.max_memory)) return false;
  leave_out_outdated(job.spec, job.graph);  // the plan has its notes
  job.plan = compiled->plan;
  explain_strategies(job.graph, job.spec, job.plan);
  job.compiled = compiled;
  return true;
}

}  // namespace

SpecError with_positions(const SpecError& error, const JobSpec& spec) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics) {
    if (!diagnostic.pos.known()) diagnostic.pos = spec.position(diagnostic.path);
  }
  return SpecError(std::move(diagnostics));
}

SpecError of_validation(const SpecError& error, const JobSpec& spec) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics)
    if (diagnostic.path.starts_with("dataset.")) diagnostic.path = "validation." + diagnostic.path;
  return with_positions(SpecError(std::move(diagnostics)), spec);
}

PlannedJob plan_job(JobSpec spec) {
  PlannedJob job;
  job.spec = std::move(spec);
  try {
    job.cost = CostModel(machine_of(job.spec.launch), job.spec.precision);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  try {
    const DataHeader header = read_data_header(job.spec.dataset, job.spec.seed);
    job.shapes = header.shapes;
    job.samples = header.samples;
    job.fields = header.fields;
    job.host_bytes = header.bytes;
    check_epoch(job.spec.dataset, job.samples);
    check_run(job.spec, job.samples);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  Trials::OfGraph known = search_plan(job);
  job.tables = plan_tables(job.spec, job.shapes);
  if (!job.tables.empty()) known = {};  // another graph than those that were tried
  if (!known.graph)
    known.graph = build_graph(job.tables.empty() ? job.spec : with_windows(job.spec, job.tables), job.shapes);
  job.graph = std::move(*known.graph);
  if (!take_trial(job)) plan_graph(job, known.memo);
  if (!job.spec.validation) return job;
  try {
    job.validation = plan_validation(job);
  } catch (const SpecError& error) {
    throw of_validation(error, job.spec);
  }
  return job;
}

void require_precision(const JobSpec& spec) {
  if (spec.precision != Precision::bf16 || spec.launch.device == Device::cuda) return;
  throw EnvError(std::string("precision is ") + (spec.fp8 ? "fp8" : "bf16") +
                 ", but CPU ranks compute in fp32; set precision: fp32, or launch.device: cuda");
}

int steps_in_flight(const TrainSpec& spec) {
  constexpr int64_t kLeast = 2, kMost = 64;
  return static_cast<int>(std::clamp(spec.sink_steps, kLeast, kMost));
}

namespace {

Program compile_process(const PlannedJob& job, const Graph& graph, int rank, const EvaluationOf* of = nullptr) {
  Program program = compile(graph, job.plan, job.spec, job.cost, rank_of_program(job.plan, rank), of);
  return job.plan.is_asynchronous() ? of_own_worker(std::move(program), job.plan.own_workers, rank) : program;
}

}  // namespace

Program compile(const PlannedJob& job, int rank) {
  return with_device_memory(job, compile_process(job, job.graph, rank));
}

Program compile_validation(const PlannedJob& job, int rank, bool beside_training) {
  const EvaluationOf of{job.graph, beside_training};
  return with_evaluation_memory(job, compile_process(job, job.validation->graph, rank, &of));
}

RankClasses compile_validation_classes(const PlannedJob& job, bool beside_training) {
  const EvaluationOf of{job.graph, beside_training};
  RankClasses classes = compile_classes(job.validation->graph, job.plan, job.spec, job.cost, &of);
  for (Program& program : classes.programs) program = with_evaluation_memory(job, std::move(program));
  return classes;
}

int64_t room_for(const Memory& validation, const Memory& training) {
  return std::max<int64_t>(validation.arena() - training.arena(), 0) + validation.workspace;
}

void make_room_for(const RankClasses& validation, RankClasses& training) {
  for (size_t c = 0; c < training.programs.size(); ++c) {
    Memory& memory = training.programs[c].memory;
    for (const int rank : training.ranks[c])
      memory.validation = std::max(memory.validation, room_for(validation.program_of(rank).memory, memory));
  }
}

std::vector<Program> compile_all(const PlannedJob& job) {
  if (job.plan.is_asynchronous()) {
    std::vector<Program> programs;
    for (int rank = 0; rank < job.spec.processes(); ++rank) programs.push_back(compile(job, rank));
    return programs;
  }
  std::vector<Program> programs = compile_all(job.graph, job.plan, job.spec, job.cost);
  for (Program& program : programs) program = with_device_memory(job, std::move(program));
  return programs;
}

RankClasses compile_classes(const PlannedJob& job) {
  if (job.compiled) {
    RankClasses classes = job.compiled->classes;
    require_verified(classes);
    return classes;
  }
  RankClasses classes = compile_classes(job.graph, job.plan, job.spec, job.cost);
  for (Program& program : classes.programs) program = with_device_memory(job, std::move(program));
  return classes;
}

}  // namespace trainctl
