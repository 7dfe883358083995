// Compares the JSON Schema with the field table.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/spec/fields.h"
#include "engine/spec/parse.h"

using namespace trainctl;
using Json = nlohmann::json;

namespace {

void check_section(const Section& section, const Json& schema) {
  INFO("section '" << section.name << "'");
  CHECK(schema.at("additionalProperties") == false);
  CHECK(schema.at("properties").size() == section.fields.size());
  for (const Field& field : section.fields) {
    INFO("field " << field.name);
    REQUIRE(schema.at("properties").contains(field.name));
    const Json& property = schema["properties"][field.name];
    CHECK(property.at("description") == field.doc);
    if (field.section) check_section(*field.section, property.contains("anyOf") ? property["anyOf"].back() : property);
  }
}

}  // namespace

TEST_CASE("the schema is JSON of draft 2020-12 and has every field with its meaning") {
  const Json schema = Json::parse(job_schema());
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
  check_section(job_section(), schema);
  CHECK_FALSE(schema.contains("required"));
  CHECK(schema["if"]["required"] == Json{"command"});
  CHECK(schema["then"]["properties"]["network"] == false);
  CHECK(schema["then"]["properties"]["launch"]["properties"]["device"] == false);
  CHECK(schema["else"]["required"] == Json{"dataset", "network"});
  CHECK(schema["else"]["properties"]["command"] == false);
  CHECK(schema["properties"]["train"]["properties"]["epochs"]["default"] == 1);
  CHECK(schema["properties"]["launch"]["properties"]["log_dir"]["default"] == "log_output");
  CHECK(schema["properties"]["parallel"]["properties"]["schedule"]["anyOf"][0]["enum"] ==
        Json{"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"});
}

TEST_CASE(
    "the schema has one shape for each layer type, for the use of a module and for a type that is an expression") {
  const Json schema = Json::parse(job_schema());
  const size_t types = layer_types().size();
  const Json& shapes = schema["$defs"]["layer"]["oneOf"];
  REQUIRE(shapes.size() == types + 2);
  for (size_t i = 0; i < types; ++i) {
    CHECK(shapes[i]["properties"]["type"]["const"] == layer_types()[i].name);
    for (const Field& field : layer_types()[i].fields) {
      const std::string mapping = mapping_of(field);
      const Json& properties =
          mapping.empty() ? shapes[i]["properties"] : shapes[i]["properties"][mapping]["properties"];
      CHECK(properties.contains(mapping.empty() ? field.name : field.name.substr(mapping.size() + 1)));
    }
  }
  CHECK(shapes[types]["properties"].contains("repeat"));
  CHECK(shapes[types + 1]["properties"]["type"] == Json{{"$ref", "#/$defs/expression"}});
}
