/* target.h - the CPU as planners see it. */
#ifndef OCT_CPU_TARGET_H
#define OCT_CPU_TARGET_H

#include "core/target.h"

extern const oct_target oct_cpu_target;

#endif
