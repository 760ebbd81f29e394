/* ports.c - the ports of a plan by name, and in print. */
#include <string.h>

#include "plan/names.h"
#include "quant/proto.h"

#define NAME_TEXT 64 /* every port's name fits */

/* The port whose printed name this is, as "input" or "weight.cached.row_data"; -1: none. */
int octet_port_find(const octet_port *ports, int count, const char *name) {
    char text[NAME_TEXT];
    for (int i = 0; ports && name && i < count; i++) {
        oct_writer writer = oct_writer_start(text, sizeof text);
        oct_write_part_name(&writer, ports[i].name, ports[i].form, ports[i].part);
        if (!strcmp(text, name)) {
            return i;
        }
    }
    return -1;
}

size_t octet_port_print(char *text, size_t size, const octet_port *port) {
    oct_writer writer = oct_writer_start(text, size);
    if (!port) {
        return 0;
    }
    oct_write_part_name(&writer, port->name, port->form, port->part);
    oct_write(&writer, "  ");
    oct_write(&writer, octet_dtype_name((octet_dtype)port->dtype));
    oct_write(&writer, " ");
    oct_write_shape(&writer, port->ndim, port->shape);
    return writer.length;
}
