// The post-processor of a tokenizer.json: the special tokens around a text. Only the template for a single text is
// read.
#include "engine/text/post_processor.h"

namespace trainctl {
namespace {

int32_t token_of_pair(const JsonPart& part) {
  const auto parts = part.elements();
  if (parts.size() != 2) part.fail("expected a token and its number");
  return static_cast<int32_t>(parts[1].integer());
}

/// Reads a post-processor TemplateProcessing: the special tokens before and after a single text.
TokensAround read_template(const JsonPart& part) {
  TokensAround around;
  bool has_text = false;
  for (const JsonPart& element : part.at("single").elements()) {
    if (element.has("Sequence")) {
      if (has_text) element.fail("a template that contains the text twice is not supported");
      has_text = true;
      continue;
    }
    const std::string name = element.at("SpecialToken").at("id").text();
    for (const JsonPart& id : part.at("special_tokens").at(name).at("ids").elements())
      (has_text ? around.after : around.before).push_back(static_cast<int32_t>(id.integer()));
  }
  if (!has_text) part.fail("a template without the text is not supported");
  return around;
}

TokensAround read_steps(const JsonPart& part) {
  TokensAround all;
  for (const JsonPart& step : part.at("processors").elements()) {
    TokensAround around = read_post_processor(step);
    all.before.insert(all.before.begin(), around.before.begin(), around.before.end());
    all.after.insert(all.after.end(), around.after.begin(), around.after.end());
  }
  return all;
}

}  // namespace

TokensAround read_post_processor(const JsonPart& part) {
  if (part.is_null()) return {};
  const std::string type = part.type();
  if (type == "TemplateProcessing") return read_template(part);
  if (type == "Sequence") return read_steps(part);
  if (type == "ByteLevel") return {};  // it only changes offsets
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{token_of_pair(part.at("cls"))}, {token_of_pair(part.at("sep"))}};
  part.fail("the post-processor '" + type + "' is not supported");
}

}  // namespace trainctl
