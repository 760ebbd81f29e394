/* environment.h - the environment, as far as a process may believe it. */
#ifndef OCT_CORE_ENVIRONMENT_H
#define OCT_CORE_ENVIRONMENT_H

/* A variable of the environment; NULL where it is not set. A program that runs with more rights
 * than its caller (set-user-ID, set-group-ID, file capabilities) has no variables: the caller
 * wrote them. Any thread may call it while none changes the environment. */
const char *oct_environment(const char *name);

#endif
