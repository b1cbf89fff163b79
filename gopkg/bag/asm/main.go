// Asm generates the assembly of bag and quant with avo. It is a module of its
// own, so that the engine does not depend on avo. After a change here:
//
//	go generate ./gopkg/bag ./gopkg/quant
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	part := flag.String("part", "bag", "bag or quant: the package to generate for")
	table := flag.String("table", "", "the Go file that lists the kernels, of part bag")
	flag.Parse() // with avo's -out, -stubs and -pkg
	ConstraintExpr("!purego")
	defineNibbles()
	switch *part {
	case "bag":
		kernels(*table)
		finishers()
		places()
	case "quant":
		decoders()
	default:
		log.Fatalf("unknown part %q", *part)
	}
	Generate()
}
