// JSON Schema of a field's value, by its kind. The sections that contain the fields are in schema.cpp.
#pragma once
#include <nlohmann/json.hpp>

#include "engine/spec/fields.h"

namespace trainctl::schema {

using Json = nlohmann::ordered_json;

Json value_schema(const Field& field);

Json list_of(Json item, int length = 0);
/// Refers to a definition of the whole schema (`$defs`).
Json reference(const char* name);

// Values that consist of fields (schema.cpp).

Json section_schema(const Section& section);
/// Groups of parameters: the fields of all optimizers but those that every group shares.
Json groups_schema();

}  // namespace trainctl::schema
