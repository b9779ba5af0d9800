// Attention by Hopper's warpgroup products and copy engine (sm_90a): the family's entry.
#pragma once

#include "attention/wgmma_prefill.cuh"
