// Profiles as a trace that chrome://tracing and ui.perfetto.dev open (the Trace Event Format, JSON).
#include "engine/train/profile/trace.h"

#include <algorithm>
#include <cmath>
#include <istream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>

#include "engine/base/error.h"
#include "engine/compile/report/report.h"
#include "engine/train/profile/waiting.h"
#include "engine/train/profile/work.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStepTrack = 0, kFirstChannel = 100;
constexpr std::string_view kInstructions = "\"traceEvents\": [";

int track(const Instruction& instruction) {
  return instruction.opcode == Opcode::send ? kFirstChannel + instruction.peer
                                            : 1 + static_cast<int>(instruction.stream);
}

std::string track_name(const Instruction& instruction) {
  if (instruction.opcode == Opcode::send) return "send to " + std::to_string(instruction.peer);
  return std::string(to_string(instruction.stream));
}

Json operands_json(const std::vector<Operand>& operands) {
  Json list = Json::array();
  for (const Operand& operand : operands) {
    std::string text = operand.tensor + " " + to_string(operand.shape);
    if (operand.dtype != DType::f32) text += " " + std::string(to_string(operand.dtype));
    list.push_back(text);
  }
  return list;
}

double rounded(double value) { return std::round(value * 100) / 100; }

/// Rates count only the time in which the instruction did not wait.
void add_rates(Json& args, const TimeSpan& span, const Program& program, double busy_ns) {
  const Instruction& instruction = program.instructions[static_cast<size_t>(span.instruction)];
  if (communicates(instruction)) {
    const auto bytes = static_cast<double>(instruction.bytes());
    args["bytes"] = instruction.bytes();
    if (busy_ns <= 0) return;
    args["GB/s"] = rounded(bytes / busy_ns);
    if (instruction.opcode != Opcode::collective) return;
    const auto size = static_cast<int>(program.groups[static_cast<size_t>(instruction.group)].size());
    args["bus GB/s"] = rounded(bytes / busy_ns * bus_factor(instruction.collective, size));
    return;
  }
  const Cost work = work_of(program, span);
  if (work.bytes > 0) args["bytes"] = static_cast<int64_t>(work.bytes);
  if (work.flops > 0) args["flops"] = static_cast<int64_t>(work.flops);
  if (busy_ns <= 0) return;
  if (work.bytes > 0) args["GB/s"] = rounded(work.bytes / busy_ns);
  if (work.flops > 0) args["GFLOP/s"] = rounded(work.flops / busy_ns);
}

Json args_of(const TimeSpan& span, const Program& program, int64_t waited_ns) {
  const Instruction& instruction = program.instructions[static_cast<size_t>(span.instruction)];
  Json args = {{"step", span.step + 1}, {"instruction", span.instruction}};
  if (span.launched > 1) args["launched"] = span.launched;
  if (instruction.opcode == Opcode::collective) {
    args["op"] = to_string(instruction.collective);
    args["ranks"] = program.groups[static_cast<size_t>(instruction.group)];
  } else {
    args["op"] =
        instruction.opcode == Opcode::kernel ? std::string_view(instruction.op) : to_string(instruction.opcode);
  }
  if (instruction.peer >= 0) args["peer"] = instruction.peer;
  if (instruction.micro_batch >= 0) args["micro_batch"] = instruction.micro_batch;
  if (instruction.recompute) args["recompute"] = true;
  if (instruction.purpose != Purpose::none) args["purpose"] = to_string(instruction.purpose);
  if (!instruction.inputs.empty()) args["in"] = operands_json(instruction.inputs);
  if (!instruction.outputs.empty()) args["out"] = operands_json(instruction.outputs);
  if (!instruction.attrs.empty()) args["attrs"] = to_string(instruction.attrs);
  add_rates(args, span, program, static_cast<double>(span.end_ns - span.begin_ns - waited_ns));
  if (waited_ns > 0) args["waited_us"] = static_cast<double>(waited_ns) / 1e3;
  return args;
}

std::string_view category(const Instruction& instruction) {
  if (communicates(instruction)) return "communication";
  if (instruction.opcode == Opcode::wait) return "wait";
  if (instruction.micro_batch < 0) return "update";
  return instruction.phase == Phase::forward ? "forward" : "backward";
}

class Writer {
 public:
  Writer(std::ostream& out, std::span<const RankProfile> profiles) : out_(out), profiles_(profiles) {
    origin_ = std::numeric_limits<int64_t>::max();
    for (const RankProfile& profile : profiles)
      for (const TimeSpan& span : profile.spans) origin_ = std::min(origin_, span.ready_ns);
    if (origin_ == std::numeric_limits<int64_t>::max()) origin_ = 0;
    waiting_ = find_waiting(profiles);
  }

  void write(const std::string& job) {
    const Json other = {{"job", job}, {"clock", "CLOCK_MONOTONIC"}, {"origin_ns", origin_}};
    out_ << "{\"displayTimeUnit\": \"ns\", \"otherData\": " << other.dump() << ", " << kInstructions;
    for (size_t rank = 0; rank < profiles_.size(); ++rank) write_rank(rank);
    for (const Message& m : waiting_.messages) {
      arrow("message", profiles_[m.from_rank], m.from_span, profiles_[m.to_rank], m.to_span);
    }
    out_ << "\n]}\n";
  }

 private:
  double microseconds(int64_t ns) const { return static_cast<double>(ns - origin_) / 1e3; }

  void event(const Json& event) {
    out_ << (first_ ? "\n" : ",\n") << event.dump();
    first_ = false;
  }

  void write_rank(size_t index) {
    const RankProfile& profile = profiles_[index];
    const Program& program = *profile.program;
    const int rank = program.rank;
    const std::string name = "rank " + std::to_string(rank) + ", stage " + std::to_string(program.stage);
    event({{"ph", "M"}, {"name", "process_name"}, {"pid", rank}, {"args", {{"name", name}}}});
    event({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
    name_track(rank, kStepTrack, "steps");
    std::map<int, std::string> tracks;
    for (const Instruction& instruction : program.instructions) {
      tracks.try_emplace(track(instruction), track_name(instruction));
    }
    for (const auto& [tid, track] : tracks) name_track(rank, tid, track);
    write_steps(profile);
    for (size_t i = 0; i < profile.spans.size(); ++i) write_span(profile, i, waiting_.waited_ns[index][i]);
    write_waits(profile);
  }

  void name_track(int rank, int tid, std::string_view name) {
    event({{"ph", "M"}, {"name", "thread_name"}, {"pid", rank}, {"tid", tid}, {"args", {{"name", name}}}});
    event({{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", rank}, {"tid", tid}, {"args", {{"sort_index", tid}}}});
  }

  void slice(int rank, int tid, const std::string& name, std::string_view kind, int64_t begin, int64_t end, Json args) {
    event({{"ph", "X"},
           {"name", name},
           {"cat", kind},
           {"pid", rank},
           {"tid", tid},
           {"ts", microseconds(begin)},
           {"dur", static_cast<double>(end - begin) / 1e3},
           {"args", std::move(args)}});
  }

  void write_steps(const RankProfile& profile) {
    std::map<uint32_t, std::pair<int64_t, int64_t>> steps;
    for (const TimeSpan& span : profile.spans) {
      auto& [begin, end] = steps.try_emplace(span.step, span.ready_ns, span.end_ns).first->second;
      begin = std::min(begin, span.ready_ns);
      end = std::max(end, span.end_ns);
    }
    int64_t free = 0;  // steps in flight may overlap slightly; slices of a track must not
    for (const auto& [step, times] : steps) {
      const int64_t begin = std::max(times.first, free);
      free = std::max(times.second, begin);
      slice(profile.program->rank, kStepTrack, "step " + std::to_string(step + 1), "step", begin, free,
            {{"step", step + 1}});
    }
  }

  void write_span(const RankProfile& profile, size_t i, int64_t waited_ns) {
    const TimeSpan& span = profile.spans[i];
    const Program& program = *profile.program;
    const Instruction& instruction = program.instructions[static_cast<size_t>(span.instruction)];
    if (span.launched == 0) return;
    if (span.begin_ns > span.ready_ns) {
      slice(program.rank, track(instruction), "wait before " + instruction.name, "wait", span.ready_ns, span.begin_ns,
            {{"step", span.step + 1}, {"before", span.instruction}});
    }
    slice(program.rank, track(instruction), name_of(program, span), category(instruction), span.begin_ns, span.end_ns,
          args_of(span, program, waited_ns));
  }

  /// An arrow for each wait between two streams. (A wait for a send frees its buffer: no data flows.)
  void write_waits(const RankProfile& profile) {
    std::map<std::pair<uint32_t, int32_t>, size_t> where;
    for (size_t i = 0; i < profile.spans.size(); ++i) where[{profile.spans[i].step, profile.spans[i].instruction}] = i;
    const std::vector<Instruction>& instructions = profile.program->instructions;
    for (size_t to = 0; to < profile.spans.size(); ++to) {
      const TimeSpan& span = profile.spans[to];
      for (const int awaited : instructions[static_cast<size_t>(span.instruction)].waits) {
        const auto from = where.find({span.step, awaited});
        if (from == where.end() || instructions[static_cast<size_t>(awaited)].opcode == Opcode::send) continue;
        arrow("wait", profile, from->second, profile, to);
      }
    }
  }

  /// Viewers draw it from the slice that encloses the first time to the slice that encloses the second.
  void arrow(std::string_view kind, const RankProfile& from, size_t from_span, const RankProfile& to, size_t to_span) {
    const TimeSpan &a = from.spans[from_span], &b = to.spans[to_span];
    const int64_t leaves = std::max(a.begin_ns, a.end_ns - 1);
    const int64_t arrives = std::clamp(leaves, b.begin_ns, std::max(b.begin_ns, b.end_ns - 1));
    ++arrows_;
    flow("s", kind, from, a, leaves);
    flow("f", kind, to, b, arrives);
  }

  void flow(const char* phase, std::string_view kind, const RankProfile& profile, const TimeSpan& span, int64_t ns) {
    const Instruction& instruction = profile.program->instructions[static_cast<size_t>(span.instruction)];
    Json json = {{"ph", phase},
                 {"name", kind},
                 {"cat", kind},
                 {"id", arrows_},
                 {"pid", profile.program->rank},
                 {"tid", track(instruction)},
                 {"ts", microseconds(ns)}};
    if (*phase == 'f') json["bp"] = "e";
    event(json);
  }

  std::ostream& out_;
  std::span<const RankProfile> profiles_;
  Waiting waiting_;
  int64_t origin_ = 0;
  int arrows_ = 0;
  bool first_ = true;
};

int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }

}  // namespace

void write_trace(std::ostream& out, std::span<const RankProfile> profiles, const std::string& job) {
  Writer(out, profiles).write(job);
}

// Line by line: the trace of a large program is hundreds of megabytes.
std::vector<TimeSpan> read_trace(std::istream& in) {
  std::string line;
  std::getline(in, line);
  const auto head = Json::parse(line + "]}", nullptr, false);
  if (!head.is_object() || !head.contains("otherData")) throw EnvError("this file is not a trainctl trace");
  const auto origin = head["otherData"].value("origin_ns", int64_t{0});
  std::vector<TimeSpan> spans;
  int64_t ready = -1;
  while (std::getline(in, line) && line != "]}") {
    if (line.ends_with(',')) line.pop_back();
    const auto event = Json::parse(line, nullptr, false);
    if (!event.is_object()) throw EnvError("the trace contains a damaged line: " + line.substr(0, 80));
    if (event.value("ph", "") != "X" || event.value("tid", kStepTrack) == kStepTrack) continue;
    const int64_t begin = origin + nanoseconds(event["ts"]), end = begin + nanoseconds(event["dur"]);
    const Json& args = event["args"];
    if (args.contains("before")) {
      ready = begin;
      continue;
    }
    spans.push_back({args["step"].get<uint32_t>() - 1, args["instruction"], ready < 0 ? begin : ready, begin, end,
                     args.value("launched", 1)});
    ready = -1;
  }
  return spans;
}

}  // namespace trainctl
