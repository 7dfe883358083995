// Tests of the measures of answers. tests/cli/answers_test.py compares all of them with scikit-learn.
#include "engine/train/trainer/quality.h"

#include <doctest/doctest.h>

#include "engine/ops/prediction_kind.h"

using namespace trainctl;

TEST_CASE("the area under the ROC curve counts pairs in the right order, and ties as one half") {
  CHECK(*area_under_roc({{0.1f, false}, {0.4f, false}, {0.35f, true}, {0.8f, true}}) == doctest::Approx(0.75));
  CHECK(*area_under_roc({{1, true}, {0, false}}) == doctest::Approx(1));
  CHECK(*area_under_roc({{0.5f, true}, {0.5f, false}, {0.5f, false}}) == doctest::Approx(0.5));
  CHECK_FALSE(area_under_roc({{0.5f, true}}).has_value());
  CHECK_FALSE(area_under_roc({}).has_value());
}

TEST_CASE("precision, recall and F1 of a class that is never answered are 0") {
  const ClassQuality never{"a", 5, 0, 0}, perfect{"b", 4, 4, 4};
  CHECK(never.precision() == 0);
  CHECK(never.f1() == 0);
  CHECK(perfect.f1() == 1);
}

TEST_CASE("a loss reads classes, a yes or no, or numbers") {
  CHECK(prediction_kind("softmax_cross_entropy") == PredictionKind::class_logits);
  CHECK(prediction_kind("binary_cross_entropy") == PredictionKind::logit);
  CHECK(prediction_kind("focal") == PredictionKind::logit);
  CHECK(prediction_kind("poisson") == PredictionKind::log_values);
  CHECK(prediction_kind("smooth_l1") == PredictionKind::values);
}
