// Rules about data sets of documents: text, chat and preference.
#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/spec/expression.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {
namespace {

/// The label of positions that are not trained, which the loss has to ignore (document_set.h).
constexpr int64_t kUntrained = -100;

bool reads_documents(const RuleContext& r) {
  return std::any_of(r.job.network.begin(), r.job.network.end(), [](const LayerSpec& layer) {
    return std::find(layer.inputs.begin(), layer.inputs.end(), "documents") != layer.inputs.end();
  });
}

}  // namespace

void preference_data_suits_the_job(RuleContext& r) {
  const DatasetSpec& set = r.job.dataset;
  if (set.type != "preference" || !r.fine({"dataset", "network"})) return;
  if (set.tokenizer.empty())
    r.wrong("dataset.type", "preference needs the tokenizer of a model", "add tokenizer: FOLDER");
  if (set.length % 2 != 0)
    r.wrong("dataset.length", "is " + number(set.length) + ", but two answers share a row", "use an even number");
  if (!reads_documents(r))
    r.wrong("dataset.type",
            "puts two answers into a row, but no layer reads the field `documents`, so attention would mix them",
            "add `documents` to the inputs of rotary, position_embedding and attention layers");
}

void documents_suit_the_job(RuleContext& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset", "loss", "network"})) return;
  const char* needs_tokenizer = set.pack                  ? "dataset.pack"
                                : set.has_class_texts()   ? "dataset.label_field"
                                : !set.json_field.empty() ? "dataset.field"
                                                          : nullptr;
  if (set.type == "text" && set.tokenizer.empty() && needs_tokenizer != nullptr)
    r.wrong(needs_tokenizer, "needs a tokenizer, because without one the bytes of the files are tokens",
            "add tokenizer: FOLDER");
  if (set.has_class_texts() && (set.pack || set.stride != 0))
    r.wrong(set.pack ? "dataset.pack" : "dataset.stride", "cannot be used for texts with a class, one per row",
            "remove it");
  if (!set.has_documents()) return;
  if (set.tokenizer.empty())
    r.wrong("dataset.type", "chat needs the tokenizer and the chat template of a model", "add tokenizer: FOLDER");
  if (set.stride != 0)
    r.wrong("dataset.stride", "cannot be used for documents, each of which begins a row", "remove it");
  if (r.job.loss && r.job.loss->attrs.integer("ignore_index", 0) != kUntrained)
    r.wrong("loss", "has to ignore the label -100 of positions that are not trained",
            "loss: {type: " + r.job.loss->type + ", ignore_index: -100}");
  if (set.pack && !reads_documents(r))
    r.wrong("dataset.pack",
            "puts several documents into a row, but no layer reads the field `documents`, so attention would mix them",
            "add `documents` to the inputs of attention layers, or remove pack");
}

/// Checks the syntax of a filter. Its names are checked when the documents are read.
void filters_are_expressions(RuleContext& r) {
  const DatasetSpec& set = r.job.dataset;
  if (set.filter.empty() || !r.fine({"dataset"})) return;
  try {
    check_expression(set.filter);
  } catch (const ExpressionError& error) {
    r.wrong("dataset.filter", error.message,
            error.hint.empty() ? "e.g. tokens >= 64 and language == 'en'" : error.hint);
  }
}

/// Checks fields that need documents, and fields that need each other.
void document_fields_agree(RuleContext& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset"})) return;
  const auto has = [&](const char* field) {
    return r.job.positions.contains(r.in_job(std::string("dataset.") + field));
  };
  if (!set.pack && set.packing != "best_fit")
    r.wrong("dataset.packing", "has no effect, because dataset.pack is false", "set pack: true");
  const bool uses_documents = !set.filter.empty() || set.deduplicate || set.fim > 0 || set.curriculum != "none";
  if (uses_documents && !set.has_documents()) {
    const char* field = !set.filter.empty() ? "dataset.filter"
                        : set.deduplicate   ? "dataset.deduplicate"
                        : set.fim > 0       ? "dataset.fim"
                                            : "dataset.curriculum";
    r.wrong(field,
            set.has_class_texts() ? "cannot be used for texts with a class"
                                  : "needs a tokenizer, because without one the bytes of the files are tokens",
            set.has_class_texts() ? "remove it" : "add tokenizer: FOLDER");
  }
  if (set.fim == 0 && (set.fim_spm != 0.5 || !set.fim_tokens.empty()))
    r.wrong(set.fim_tokens.empty() ? "dataset.fim_spm" : "dataset.fim_tokens",
            "has no effect, because dataset.fim is 0", "set fim: 0.5");
  if (!set.fim_tokens.empty() && set.fim_tokens.size() != 3)
    r.wrong("dataset.fim_tokens", "needs the tokens before the prefix, the suffix and the middle",
            "e.g. [<fim_prefix>, <fim_suffix>, <fim_middle>]");
  if (set.fim > 0 && set.length < 8)
    r.wrong("dataset.fim", "needs rows of at least 8 tokens, of which three mark the parts", "increase dataset.length");
  if (set.fim > 0 && set.packing == "concatenate")
    r.wrong("dataset.fim", "needs whole documents or pieces of them in a row, which packing: concatenate cuts",
            "use packing: best_fit or in_order");
  if (set.curriculum == "none") {
    for (const char* field : {"curriculum_epochs", "curriculum_noise"})
      if ((field == std::string("curriculum_epochs") ? set.curriculum_epochs != 1 : set.curriculum_noise != 0.05) &&
          has(field))
        r.wrong(std::string("dataset.") + field, "has no effect, because there is no curriculum",
                "set curriculum: length");
  } else if (!set.shuffle || set.shuffle_block > 0) {
    r.wrong("dataset.curriculum", "is an order of its own", "remove shuffle and shuffle_block");
  }
}

}  // namespace trainctl::rules
