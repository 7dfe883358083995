// Measures of how good answers are, over all samples of a set that have a label.
#include "engine/train/trainer/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <type_traits>

#include "engine/train/trainer/answers.h"

namespace trainctl {
namespace {

/// Scores that are kept for the area under the ROC curve.
constexpr int64_t kMostScores = int64_t{1} << 26;

using Scores = std::vector<std::vector<std::pair<float, bool>>>;

/// Mean over the classes (one against the rest); nothing if a class has no samples.
std::optional<double> mean_area(Scores& scores) {
  double sum = 0;
  for (auto& one : scores) {
    const std::optional<double> area = area_under_roc(std::move(one));
    if (!area) return std::nullopt;
    sum += *area;
  }
  return scores.empty() ? std::nullopt : std::optional(sum / static_cast<double>(scores.size()));
}

class WorstSamples {
 public:
  /// A lower rank is worse.
  void add(double rank, const std::function<WorstSample()>& sample) {
    if (all_.size() == kMostWorst && rank >= all_.back().first) return;
    const auto at = std::upper_bound(all_.begin(), all_.end(), rank,
                                     [](double value, const auto& entry) { return value < entry.first; });
    all_.insert(at, {rank, sample()});
    if (all_.size() > kMostWorst) all_.pop_back();
  }
  std::vector<WorstSample> take() {
    std::vector<WorstSample> samples;
    for (auto& [rank, sample] : all_) samples.push_back(std::move(sample));
    return samples;
  }

 private:
  std::vector<std::pair<double, WorstSample>> all_;
};

double mean_f1(const std::vector<ClassQuality>& classes) {
  double sum = 0;
  for (const ClassQuality& one : classes) sum += one.f1();
  return classes.empty() ? 0 : sum / static_cast<double>(classes.size());
}

/// Leaves out classes that no label and no answer has, such as outputs beyond the classes of the data.
void leave_out_unused(Quality& quality, Scores& scores) {
  const auto is_used = [](const ClassQuality& one) { return one.samples > 0 || one.predicted > 0; };
  std::vector<size_t> used;
  for (size_t c = 0; c < quality.classes.size(); ++c)
    if (is_used(quality.classes[c])) used.push_back(c);
  if (used.size() == quality.classes.size()) return;
  const auto kept = [&](auto& all) {
    std::decay_t<decltype(all)> some;
    for (const size_t c : used) some.push_back(std::move(all[c]));
    return some;
  };
  quality.classes = kept(quality.classes);
  if (scores.size() > 1) scores = kept(scores);
  if (quality.confusion.empty()) return;
  quality.confusion = kept(quality.confusion);
  for (std::vector<int64_t>& row : quality.confusion) row = kept(row);
}

WorstSample place_of(const Answers& answers, int64_t sample) {
  Answers::Place place = answers.place(sample);
  return {sample, std::move(place.file), place.line, "", "", 0};
}

/// Accuracy, F1, AUC, confusion matrix and worst samples of predictions that are probabilities of classes.
Quality quality_of_classes(Answers& answers) {
  Quality quality;
  const auto classes = static_cast<size_t>(answers.width());
  for (size_t c = 0; c < classes; ++c) quality.classes.push_back({answers.class_name(static_cast<int64_t>(c))});
  const bool is_confused = answers.width() <= kMostConfusedClasses;
  if (is_confused) quality.confusion.assign(classes, std::vector<int64_t>(classes));
  const bool has_scores = answers.size() <= kMostScores / answers.width();
  Scores scores(has_scores ? (classes == 2 ? 1 : classes) : 0);
  WorstSamples worst;
  int64_t correct = 0;
  for (int64_t i = 0; i < answers.size(); ++i) {
    const auto label = answers.label(i);
    if (!label || (*label)[0] < 0 || (*label)[0] >= static_cast<float>(classes)) continue;
    const auto of = static_cast<size_t>((*label)[0]);
    const std::span<const float> row = answers.read(i);
    const auto best = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    ++quality.samples;
    ++quality.classes[of].samples;
    ++quality.classes[best].predicted;
    if (of == best) {
      ++quality.classes[of].correct;
      ++correct;
    } else {
      worst.add(static_cast<double>(row[of]), [&] {
        WorstSample sample = place_of(answers, i);
        sample.label = quality.classes[of].name;
        sample.answer = quality.classes[best].name;
        sample.probability = static_cast<double>(row[of]);
        return sample;
      });
    }
    if (is_confused) ++quality.confusion[of][best];
    for (size_t s = 0; s < scores.size(); ++s) {
      const size_t c = scores.size() == 1 ? 1 : s;
      scores[s].emplace_back(row[c], of == c);
    }
  }
  if (quality.samples == 0) return quality;
  leave_out_unused(quality, scores);
  quality.worst = worst.take();
  quality.values.emplace_back("accuracy", static_cast<double>(correct) / static_cast<double>(quality.samples));
  quality.values.emplace_back("f1", mean_f1(quality.classes));
  if (const auto area = mean_area(scores)) quality.values.emplace_back("auc", *area);
  return quality;
}

/// Each output is a yes or no.
Quality quality_of_logits(Answers& answers) {
  Quality quality;
  const auto outputs = static_cast<size_t>(answers.width());
  for (size_t c = 0; c < outputs; ++c)
    quality.classes.push_back({outputs == 1 ? "yes" : answers.class_name(static_cast<int64_t>(c))});
  const bool has_scores = answers.size() <= kMostScores / answers.width();
  Scores scores(has_scores ? outputs : 0);
  std::vector<std::vector<int64_t>> confusion(2, std::vector<int64_t>(2));
  WorstSamples worst;
  int64_t correct = 0;
  for (int64_t i = 0; i < answers.size(); ++i) {
    const auto label = answers.label(i);
    if (!label) continue;
    const std::span<const float> row = answers.read(i);
    ++quality.samples;
    for (size_t c = 0; c < std::min(outputs, label->size()); ++c) {
      const bool is_true = (*label)[c] >= 0.5f, is_said = row[c] >= 0.5f;
      quality.classes[c].samples += is_true ? 1 : 0;
      quality.classes[c].predicted += is_said ? 1 : 0;
      quality.classes[c].correct += is_true && is_said ? 1 : 0;
      ++confusion[is_true ? 1 : 0][is_said ? 1 : 0];
      correct += is_true == is_said ? 1 : 0;
      const double right = static_cast<double>(is_true ? row[c] : 1 - row[c]);
      if (is_true != is_said)
        worst.add(right, [&] {
          WorstSample sample = place_of(answers, i);
          sample.label = is_true ? "1" : "0";
          sample.answer = is_said ? "1" : "0";
          sample.probability = right;
          return sample;
        });
      if (has_scores) scores[c].emplace_back(row[c], is_true);
    }
  }
  if (quality.samples == 0) return quality;
  quality.worst = worst.take();
  if (outputs == 1) quality.confusion = std::move(confusion);
  quality.values.emplace_back(
      "accuracy", static_cast<double>(correct) / (static_cast<double>(quality.samples) * static_cast<double>(outputs)));
  quality.values.emplace_back("f1", mean_f1(quality.classes));
  if (const auto area = mean_area(scores)) quality.values.emplace_back("auc", *area);
  return quality;
}

/// Sums of one output, in double.
struct ValueSums {
  double error = 0, squared = 0, label = 0, spread = 0;  ///< spread: sum of squared differences from the mean
};

/// MAE, RMSE, R2 and worst samples of predictions that are numbers.
Quality quality_of_values(Answers& answers) {
  Quality quality;
  std::vector<ValueSums> sums(static_cast<size_t>(answers.width()));
  WorstSamples worst;
  for (int64_t i = 0; i < answers.size(); ++i) {
    const auto label = answers.label(i);
    if (!label || label->size() != sums.size()) continue;
    const std::span<const float> row = answers.read(i);
    ++quality.samples;
    double distance = 0;
    for (size_t c = 0; c < sums.size(); ++c) {
      const double of = static_cast<double>((*label)[c]), error = static_cast<double>(row[c]) - of;
      ValueSums& sum = sums[c];
      sum.error += std::abs(error);
      sum.squared += error * error;
      const double from_mean = of - sum.label;  // Welford: `label` is the mean so far
      sum.label += from_mean / static_cast<double>(quality.samples);
      sum.spread += from_mean * (of - sum.label);
      distance += std::abs(error);
    }
    worst.add(-distance, [&] {
      WorstSample sample = place_of(answers, i);
      sample.label = fmt::format("{:.6g}", (*label)[0]);
      sample.answer = fmt::format("{:.6g}", row[0]);
      sample.probability = distance;
      return sample;
    });
  }
  if (quality.samples == 0) return quality;
  quality.worst = worst.take();
  const double count = static_cast<double>(quality.samples) * static_cast<double>(sums.size());
  double error = 0, squared = 0, r2 = 0;
  bool has_r2 = quality.samples > 1;
  for (const ValueSums& sum : sums) {
    error += sum.error;
    squared += sum.squared;
    has_r2 = has_r2 && sum.spread > 0;
    if (has_r2) r2 += (1 - sum.squared / sum.spread) / static_cast<double>(sums.size());
  }
  quality.values.emplace_back("mae", error / count);
  quality.values.emplace_back("rmse", std::sqrt(squared / count));
  if (has_r2) quality.values.emplace_back("r2", r2);
  return quality;
}

}  // namespace

std::optional<double> area_under_roc(std::vector<std::pair<float, bool>> scores) {
  std::sort(scores.begin(), scores.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  double positives = 0, sum_of_ranks = 0;
  for (size_t first = 0; first < scores.size();) {
    size_t end = first;
    while (end < scores.size() && scores[end].first == scores[first].first) ++end;
    const double rank = static_cast<double>(first + 1 + end) / 2;  // mean of the ranks first + 1 … end
    for (size_t i = first; i < end; ++i)
      if (scores[i].second) {
        ++positives;
        sum_of_ranks += rank;
      }
    first = end;
  }
  const double negatives = static_cast<double>(scores.size()) - positives;
  if (positives == 0 || negatives == 0) return std::nullopt;
  return (sum_of_ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

Quality quality_of(Answers& answers) {
  switch (answers.kind()) {
    case PredictionKind::class_logits:
      return quality_of_classes(answers);
    case PredictionKind::logit:
      return quality_of_logits(answers);
    case PredictionKind::values:
    case PredictionKind::log_values:
      break;
  }
  return quality_of_values(answers);
}

nlohmann::ordered_json to_json(const Quality& quality) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : quality.values) json[name] = value;
  if (!quality.classes.empty()) {
    auto& classes = json["classes"] = nlohmann::ordered_json::array();
    for (const ClassQuality& one : quality.classes)
      classes.push_back({{"name", one.name},
                         {"samples", one.samples},
                         {"predicted", one.predicted},
                         {"precision", one.precision()},
                         {"recall", one.recall()},
                         {"f1", one.f1()}});
  }
  if (!quality.confusion.empty()) json["confusion"] = quality.confusion;
  auto& worst = json["worst"] = nlohmann::ordered_json::array();
  for (const WorstSample& sample : quality.worst) {
    nlohmann::ordered_json row = {{"file", sample.file}};
    if (sample.line >= 0) row["line"] = sample.line;
    if (!sample.image.empty()) row["image"] = sample.image;
    row["label"] = sample.label;
    row["answer"] = sample.answer;
    row[quality.classes.empty() ? "error" : "probability"] = sample.probability;
    worst.push_back(std::move(row));
  }
  return json;
}

}  // namespace trainctl
