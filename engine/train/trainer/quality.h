// Measures of how good answers are, over all samples of a set that have a label. The definitions are those of
// scikit-learn: precision, recall and F1 of a class are 0 where their denominator is 0, and the area under the ROC
// curve counts ties as one half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

class Answers;

struct ClassQuality {
  std::string name;
  int64_t samples = 0;    ///< with this label
  int64_t predicted = 0;  ///< with this answer
  int64_t correct = 0;

  double precision() const { return ratio(correct, predicted); }
  double recall() const { return ratio(correct, samples); }
  double f1() const { return ratio(2 * correct, samples + predicted); }

 private:
  static double ratio(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

/// A sample whose answer is far from its label.
struct WorstSample {
  int64_t sample = 0;
  std::string file;
  int64_t line = -1;  ///< line in a table; -1: none
  std::string label, answer;
  double probability = 0;  ///< classes: of the label; values: the absolute error
  std::string image = {};  ///< name of a picture of it; "": there is none
};

struct Quality {
  int64_t samples = 0;
  /// Classes that a label or an answer has, or the outputs of a job whose outputs are each a yes or no.
  std::vector<ClassQuality> classes;
  /// By label, then by answer. Empty if there are more than kMostConfusedClasses classes.
  std::vector<std::vector<int64_t>> confusion;
  /// "accuracy", "f1", "auc", "mae", "rmse", "r2"; those that the answers have.
  std::vector<std::pair<std::string, double>> values;
  std::vector<WorstSample> worst;  ///< at most kMostWorst, the worst first
};

inline constexpr int64_t kMostConfusedClasses = 1000;
inline constexpr size_t kMostWorst = 24;

/// Reads all answers and labels. Labels that are not classes of the network are left out.
Quality quality_of(Answers& answers);

/// Area under the ROC curve of scores, and whether each belongs to the class; nothing if all do, or none.
std::optional<double> area_under_roc(std::vector<std::pair<float, bool>> scores);

/// {"classes": [{"name", "samples", "precision", "recall", "f1"}, …], "confusion": [[…]], "auc": …, "worst": […]}.
nlohmann::ordered_json to_json(const Quality& quality);

}  // namespace trainctl
