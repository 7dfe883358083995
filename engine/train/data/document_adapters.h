// The adapters of documents: with adapters.names, each document has a field with the name or number of its adapter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/document_index.h"

namespace trainctl {

/// The number of a document's adapter. Throws SpecError (adapters.field), which names the document.
int32_t adapter_of_document(const DatasetSpec& spec, const DocumentIndex& index, int64_t document);

/// The number of each document's adapter; 0 for documents that are not `used`. An empty `used` means that all documents
/// are used. The result is empty if the set has no adapters. Throws the same SpecError as adapter_of_document.
std::vector<int32_t> adapters_of_documents(const DatasetSpec& spec, const DocumentIndex& index,
                                           const std::vector<bool>& used);

}  // namespace trainctl
