// SIGBUS during calls: see faults.c.
#ifndef FAULTS_H
#define FAULTS_H

// Makes Go's handler of SIGBUS the first one until faults_release gets what this returned.
int faults_hold(void);
void faults_release(int held);

#endif
